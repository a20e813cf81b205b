// A few lines at the bottom of the terminal, redrawn in place. The cursor stays below them and the
// terminal's state is not changed, so that the terminal remains usable however the program ends.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gcr::cli {

/// Writes to standard output and flushes, so that a script or a terminal shows it at once.
void print_now(const std::string& text);

struct TerminalSize {
  std::size_t columns = 80;
  std::size_t rows = 24;
};

/// Returns the current size of the terminal on standard output.
TerminalSize terminal_size();

/// Returns whether standard output is a terminal that supports cursor movements.
bool is_terminal();

/// Returns whether NO_COLOR (no-color.org) allows colours.
bool colours_allowed();

class TerminalBlock {
 public:
  struct Line {
    std::string text;         ///< printable ASCII, possibly with colours
    std::size_t columns = 0;  ///< width of `text` on the screen; less than that of the terminal
  };

  /// Replaces the lines that were drawn before, even if the terminal's width has changed since.
  void draw(const std::vector<Line>& lines);

  /// Removes the lines; the next output is printed in their place.
  void erase();

 private:
  std::string back_to_begin() const;

  std::vector<std::size_t> drawn_;  ///< columns of each line
};

}  // namespace gcr::cli
