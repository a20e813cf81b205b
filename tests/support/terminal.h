// A program on a terminal, by tmux: its screen, typed keys, and resized windows.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace gcr::test {

/// A tmux server of its own with one window. All its processes end with the object.
class Terminal {
 public:
  /// Starts `words` on a terminal of this size with the variables of `environment` ("NAME=value")
  /// and TERM, and no others. Throws std::runtime_error if tmux cannot.
  Terminal(unsigned columns, unsigned rows, const std::vector<std::string>& words,
           const std::vector<std::string>& environment);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// The visible screen, a line per row; with the scrollback if `all`.
  std::string screen(bool all = false) const;

  /// The same with the colours' escape sequences.
  std::string screen_with_colours() const;

  /// Polls until it is as wanted; false if it is not in time.
  bool wait_for(const std::function<bool(const std::string&)>& wanted) const;
  bool wait_for(const std::string& text) const;

  /// As tmux names keys: "C-c".
  void press(const std::string& key) const;

  /// Waits before: tmux tells the program of a second size a quarter of a second late, and output
  /// meanwhile is for the old size.
  void resize(unsigned columns, unsigned rows) const;

  /// Waits for the program's end; returns its exit status, -1 if it does not end in time.
  int finish() const;

 private:
  std::string tmux(const std::vector<std::string>& words) const;

  std::string folder_;  ///< tmux's socket, and the program's exit status
};

}  // namespace gcr::test
