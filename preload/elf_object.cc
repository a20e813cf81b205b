#include "preload/elf_object.h"

#include <sys/mman.h>

namespace gcr::preload {
namespace {

std::uint32_t gnu_hash(const char* name) {
  std::uint32_t hash = 5381;
  for (; *name != '\0'; ++name) hash = hash * 33 + static_cast<unsigned char>(*name);
  return hash;
}

std::uint32_t sysv_hash(const char* name) {
  std::uint32_t hash = 0;
  for (; *name != '\0'; ++name) {
    hash = (hash << 4) + static_cast<unsigned char>(*name);
    const std::uint32_t top = hash & 0xf0000000;
    hash = (hash ^ (top >> 24)) & ~top;
  }
  return hash;
}

bool same(const char* a, const char* b) {
  for (; *a == *b; ++a, ++b) {
    if (*a == '\0') return true;
  }
  return false;
}

}  // namespace

ElfObject::ElfObject(ElfW(Addr) base, const ElfW(Dyn) * dynamic) : base_(base) {
  if (dynamic == nullptr) return;
  // The loader rewrites these to absolute addresses, except where the section is read-only (vdso).
  const auto absolute = [base](ElfW(Addr) value) { return value >= base ? value : value + base; };
  std::size_t soname_offset = 0;
  for (const ElfW(Dyn)* entry = dynamic; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) address = absolute(entry->d_un.d_ptr);
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols_ = reinterpret_cast<const ElfW(Sym)*>(address);
        break;
      case DT_STRTAB:
        strings_ = reinterpret_cast<const char*>(address);
        break;
      case DT_GNU_HASH:
        gnu_hash_ = reinterpret_cast<const std::uint32_t*>(address);
        break;
      case DT_HASH:
        sysv_hash_ = reinterpret_cast<const std::uint32_t*>(address);
        break;
      case DT_JMPREL:
        calls_ = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_PLTRELSZ:
        calls_bytes_ = entry->d_un.d_val;
        break;
      case DT_RELA:
        data_ = reinterpret_cast<const ElfW(Rela)*>(address);
        break;
      case DT_RELASZ:
        data_bytes_ = entry->d_un.d_val;
        break;
      case DT_RELACOUNT:
        relative_count_ = entry->d_un.d_val;
        break;
      case DT_SONAME:
        soname_offset = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  if (strings_ != nullptr && soname_offset != 0) soname_ = strings_ + soname_offset;
}

bool ElfObject::defines(std::uint32_t index, const char* name) const {
  const ElfW(Sym)& symbol = symbols_[index];
  const int type = ELF64_ST_TYPE(symbol.st_info);
  return symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 && type == STT_FUNC &&
         same(strings_ + symbol.st_name, name);
}

// Layout of DT_GNU_HASH: bucket count, index of the first symbol, words and shift of the Bloom
// filter; the filter; the buckets; one hash per symbol, whose lowest bit ends a chain.
const ElfW(Sym) * ElfObject::find_by_gnu_hash(const char* name) const {
  const std::uint32_t bucket_count = gnu_hash_[0];
  const std::uint32_t first_symbol = gnu_hash_[1];
  const std::uint32_t bloom_words = gnu_hash_[2];
  const std::uint32_t bloom_shift = gnu_hash_[3];
  if (bucket_count == 0 || bloom_words == 0) return nullptr;
  constexpr std::uint32_t kBits = 8 * sizeof(ElfW(Addr));
  const auto* bloom = reinterpret_cast<const ElfW(Addr)*>(gnu_hash_ + 4);
  const auto* buckets = reinterpret_cast<const std::uint32_t*>(bloom + bloom_words);
  const std::uint32_t* chains = buckets + bucket_count;

  const std::uint32_t hash = gnu_hash(name);
  const ElfW(Addr) word = bloom[(hash / kBits) % bloom_words];
  if (((word >> (hash % kBits)) & (word >> ((hash >> bloom_shift) % kBits)) & 1) == 0) {
    return nullptr;
  }
  std::uint32_t index = buckets[hash % bucket_count];
  if (index < first_symbol) return nullptr;
  for (;; ++index) {
    const std::uint32_t entry = chains[index - first_symbol];
    if ((entry | 1) == (hash | 1) && defines(index, name)) return &symbols_[index];
    if ((entry & 1) != 0) return nullptr;
  }
}

// Layout of DT_HASH: bucket count, chain count; the buckets; the chains.
const ElfW(Sym) * ElfObject::find_by_sysv_hash(const char* name) const {
  const std::uint32_t bucket_count = sysv_hash_[0];
  if (bucket_count == 0) return nullptr;
  const std::uint32_t* buckets = sysv_hash_ + 2;
  const std::uint32_t* chains = buckets + bucket_count;
  for (std::uint32_t i = buckets[sysv_hash(name) % bucket_count]; i != STN_UNDEF; i = chains[i]) {
    if (defines(i, name)) return &symbols_[i];
  }
  return nullptr;
}

const ElfW(Sym) * ElfObject::find_symbol(const char* name) const {
  if (symbols_ == nullptr || strings_ == nullptr) return nullptr;
  if (gnu_hash_ != nullptr) return find_by_gnu_hash(name);
  return sysv_hash_ != nullptr ? find_by_sysv_hash(name) : nullptr;
}

void* ElfObject::find_function(const char* name) const {
  const ElfW(Sym)* symbol = find_symbol(name);
  return symbol == nullptr ? nullptr : reinterpret_cast<void*>(base_ + symbol->st_value);
}

void** ElfObject::find_call(const char* name) const {
  void** slot = nullptr;
  visit_bindings([&](const Binding& binding) {
    if (!binding.is_call || !same(binding.name(), name)) return false;
    slot = binding.slot;
    return true;
  });
  return slot;
}

const ElfW(Dyn) * dynamic_section(const dl_phdr_info& info) {
  for (const ElfW(Phdr) & segment : segments_of(info)) {
    if (segment.p_type == PT_DYNAMIC) {
      return reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + segment.p_vaddr);
    }
  }
  return nullptr;
}

bool contains(const dl_phdr_info& info, const void* address) {
  const auto value = reinterpret_cast<ElfW(Addr)>(address);
  for (const ElfW(Phdr) & segment : segments_of(info)) {
    const ElfW(Addr) begin = info.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && value >= begin && value - begin < segment.p_memsz) return true;
  }
  return false;
}

bool is_read_only(const dl_phdr_info& info, const void* address) {
  const auto value = reinterpret_cast<ElfW(Addr)>(address);
  for (const ElfW(Phdr) & segment : segments_of(info)) {
    if (segment.p_type != PT_GNU_RELRO) continue;
    // The loader protects whole pages only, and leaves a partial last page writable.
    const ElfW(Addr) begin = info.dlpi_addr + segment.p_vaddr;
    const ElfW(Addr) end = (begin + segment.p_memsz) / kLoaderPageBytes * kLoaderPageBytes;
    if (value >= begin / kLoaderPageBytes * kLoaderPageBytes && value < end) return true;
  }
  return false;
}

bool store_pointer(void** slot, void* value, bool read_only) {
  void* const page = page_of(reinterpret_cast<ElfW(Addr)>(slot));
  if (read_only && ::mprotect(page, kLoaderPageBytes, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
  if (read_only) ::mprotect(page, kLoaderPageBytes, PROT_READ);
  return true;
}

}  // namespace gcr::preload
