// Reads the symbols and bindings of one loaded object without the dynamic loader, for code that
// replaces dlsym and therefore cannot call it.
#pragma once

#include <link.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace gcr::preload {

/// The unit in which the loader protects memory on x86-64.
inline constexpr ElfW(Addr) kLoaderPageBytes = 4096;

/// The start of the page that contains an address.
inline void* page_of(ElfW(Addr) address) {
  return reinterpret_cast<void*>(address / kLoaderPageBytes * kLoaderPageBytes);
}

inline std::span<const ElfW(Phdr)> segments_of(const dl_phdr_info& info) {
  return {info.dlpi_phdr, info.dlpi_phnum};
}

/// A word of an object in which the loader stores a symbol's address.
struct Binding {
  void** slot;
  bool is_call;  ///< a PLT entry, which may point into the PLT before its first call
  const ElfW(Sym) * symbol;
  const char* strings;

  const char* name() const { return strings + symbol->st_name; }
  /// Whether the object itself defines the symbol too.
  bool is_defined() const { return symbol->st_shndx != SHN_UNDEF; }
};

/// A view of one loaded object's dynamic symbols. Owns nothing; valid while the object stays
/// loaded, as it does inside a dl_iterate_phdr callback. Calls no function of another object.
class ElfObject {
 public:
  /// `base` is the object's load address; `dynamic` is its dynamic section and may be null.
  ElfObject(ElfW(Addr) base, const ElfW(Dyn) * dynamic);

  /// The address of a function that this object itself defines and exports, or null. Symbol
  /// versions are ignored. Indirect functions (IFUNC) are not found. Neither locks nor allocates.
  void* find_function(const char* name) const;

  /// The symbol table entry of `name`, which the loader's own searches find; null if there is none.
  const ElfW(Sym) * find_symbol(const char* name) const;

  /// Calls `visit(Binding)` for each word that the loader binds by symbol name, calls first, until
  /// it returns true. Returns whether it did. Neither locks nor allocates.
  template <class Visitor>
  bool visit_bindings(Visitor&& visit) const;

  /// The PLT slot with the address that this object calls for `name`, or null if it does not call
  /// `name` through its procedure linkage table. Neither locks nor allocates.
  void** find_call(const char* name) const;

  /// The object's SONAME, or "".
  const char* soname() const { return soname_; }

 private:
  const ElfW(Sym) * find_by_gnu_hash(const char* name) const;
  const ElfW(Sym) * find_by_sysv_hash(const char* name) const;
  bool defines(std::uint32_t index, const char* name) const;

  template <class Visitor>
  bool visit_relocations(const ElfW(Rela) * begin, const ElfW(Rela) * end, Visitor&& visit) const;

  ElfW(Addr) base_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* strings_ = nullptr;
  const std::uint32_t* gnu_hash_ = nullptr;
  const std::uint32_t* sysv_hash_ = nullptr;
  const ElfW(Rela) * calls_ = nullptr;
  std::size_t calls_bytes_ = 0;
  const ElfW(Rela) * data_ = nullptr;
  std::size_t data_bytes_ = 0;
  std::size_t relative_count_ = 0;  ///< number of first relocations, which name no symbol
  const char* soname_ = "";
};

/// The dynamic section of a loaded object, or null.
const ElfW(Dyn) * dynamic_section(const dl_phdr_info& info);

/// Whether the address lies in one of the object's segments.
bool contains(const dl_phdr_info& info, const void* address);

/// Whether `address` is in memory that the loader made read-only after binding (PT_GNU_RELRO).
bool is_read_only(const dl_phdr_info& info, const void* address);

/// Stores `value` in `*slot` atomically. With `read_only`, the page is read-only before and after.
/// False if the kernel does not permit the write.
bool store_pointer(void** slot, void* value, bool read_only);

/// Calls `visit(ElfObject, const dl_phdr_info&)` for every loaded object in load order, until it
/// returns true. Returns whether it did. Holds the loader's lock meanwhile.
template <class Visitor>
bool visit_objects(Visitor&& visit) {
  return dl_iterate_phdr(
             [](dl_phdr_info* info, std::size_t, void* data) -> int {
               return (*static_cast<Visitor*>(data))(
                          ElfObject(info->dlpi_addr, dynamic_section(*info)), *info)
                          ? 1
                          : 0;
             },
             &visit) != 0;
}

template <class Visitor>
bool ElfObject::visit_relocations(const ElfW(Rela) * begin, const ElfW(Rela) * end,
                                  Visitor&& visit) const {
  for (const ElfW(Rela)* at = begin; at < end; ++at) {
    const auto type = ELF64_R_TYPE(at->r_info);
    if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64) continue;
    if (visit(Binding{reinterpret_cast<void**>(base_ + at->r_offset), type == R_X86_64_JUMP_SLOT,
                      symbols_ + ELF64_R_SYM(at->r_info), strings_})) {
      return true;
    }
  }
  return false;
}

template <class Visitor>
bool ElfObject::visit_bindings(Visitor&& visit) const {
  if (symbols_ == nullptr || strings_ == nullptr) return false;
  return visit_relocations(calls_, calls_ + calls_bytes_ / sizeof(*calls_), visit) ||
         visit_relocations(data_ + relative_count_, data_ + data_bytes_ / sizeof(*data_), visit);
}

}  // namespace gcr::preload
