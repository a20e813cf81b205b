// Manifest files with untrusted content: header, certificates and signature, which are read before
// anything is verified. Only a manifest that an agent of the authority has signed is accepted.
#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <openssl/pem.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "src/base/little_endian.h"
#include "store/manifest.h"
#include "tests/fuzz/input.h"
#include "tests/support/test_certificates.h"

namespace gcr::fuzz {
namespace {

using namespace gcr::store;
using gcr::test::TestAuthority;

constexpr std::size_t kHeaderBytes = 40;
constexpr const char* kFile = "fuzzed.checkpoint";

/// The parts of a file.
struct Parts {
  std::string header, chain, signature, body;
};

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Parts split(const std::string& file) {
  const auto chain = load_little_endian<std::uint32_t>(std::as_bytes(std::span(file)).data() + 8);
  const auto signature =
      load_little_endian<std::uint32_t>(std::as_bytes(std::span(file)).data() + 12);
  return {file.substr(0, kHeaderBytes), file.substr(kHeaderBytes, chain),
          file.substr(kHeaderBytes + chain, signature),
          file.substr(kHeaderBytes + chain + signature)};
}

/// A directory, and files by several signers of which only the first is trusted.
class World {
 public:
  World() {
    std::string path = std::filesystem::temp_directory_path() / "gcr-fuzz-XXXXXX";
    require(::mkdtemp(path.data()) != nullptr, "there is a temporary folder");
    path_ = path;
    directory_.emplace(Directory::create(path_ / "store", {::geteuid(), ::getegid()}).value());
    const auto good = authority_.issue({.common_name = "agent"});
    const auto revoked = authority_.issue({.common_name = "revoked"});
    tls_ = files("agent", good);
    const auto revoked_files = files("revoked", revoked);
    tls_.revoked = write("crl", authority_.revocation_list({revoked.certificate}));
    add(tls_);
    add(revoked_files);
    add(files("operator", authority_.issue({.role = "operator", .common_name = "operator"})));
    add(files("expired", authority_.issue({.common_name = "expired", .expired = true})));
    add(files("stranger", stranger_.issue({.common_name = "stranger"})));
    file_.reset(::open((path_ / "store" / kFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    require(file_.get() >= 0, "the file can be made");
  }
  ~World() { std::filesystem::remove_all(path_); }

  const Parts& by(unsigned signer) const { return signers_[signer % signers_.size()]; }
  std::size_t signers() const { return signers_.size(); }
  std::string authority() const { return authority_.certificate(); }

  void check(const std::string& bytes) {
    require(::ftruncate(file_.get(), static_cast<off_t>(bytes.size())) == 0 &&
                write_all(file_.get(), std::as_bytes(std::span(bytes)), 0) == 0,
            "the file can be written");
    const auto claimed = claimed_id(*directory_, kFile);
    require(claimed.has_value(), "a file that can be read claims an id, or none");
    const auto manifest = read_manifest(*directory_, kFile, tls_);
    if (manifest) {
      require(manifest->SerializeAsString() == signers_.front().body, "the agent has signed it");
      require(*claimed == to_uuid(manifest->checkpoint_id()), "it has the id that it claims");
    } else {
      const Code code = manifest.error().code();
      require(
          code == Code::kDataLoss || code == Code::kPermissionDenied || code == Code::kUnsupported,
          "the file is at fault, and nothing else");
    }
  }

 private:
  std::string write(const std::string& name, const std::string& text) {
    gcr::test::write_private_file(path_ / name, text);
    return path_ / name;
  }

  control::TlsFiles files(const std::string& name, const gcr::test::PemPair& own) {
    return {write("ca", authority_.certificate()), write(name + ".crt", own.certificate),
            write(name + ".key", own.key)};
  }

  void add(const control::TlsFiles& signer) {
    proto::Manifest manifest;
    manifest.set_format(kFormat);
    manifest.set_checkpoint_id("0123456789abcdef");
    manifest.set_name("fuzzed");
    manifest.set_content_key(std::string(32, 'k'));
    manifest.set_digest_key(std::string(32, 'd'));
    require(write_manifest(*directory_, kFile, manifest, signer).has_value(), "a seed is written");
    require(read_manifest(*directory_, kFile, tls_).has_value() == signers_.empty(),
            "only the agent is trusted");
    signers_.push_back(split(bytes_of(path_ / "store" / kFile)));
    std::filesystem::remove(path_ / "store" / kFile);
  }

  std::filesystem::path path_;
  TestAuthority authority_;
  TestAuthority stranger_{"another authority"};
  std::optional<Directory> directory_;
  control::TlsFiles tls_;
  std::vector<Parts> signers_;
  UniqueFd file_;
};

World& world() {
  static World the_world;
  return the_world;
}

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};

/// The agent's certificate with some of its bytes changed.
std::string changed_certificate(Input& input) {
  const std::string& chain = world().by(0).chain;
  const std::unique_ptr<BIO, FreeBio> from(
      BIO_new_mem_buf(chain.data(), static_cast<int>(chain.size())));
  char *name = nullptr, *header = nullptr;
  unsigned char* der = nullptr;
  long length = 0;
  require(PEM_read_bio(from.get(), &name, &header, &der, &length) == 1, "it can be read");
  for (unsigned n = input.number<std::uint8_t>() % 8; n > 0; --n) {
    const auto at = input.number<std::uint16_t>() % length;
    der[at] = input.number<std::uint8_t>();
  }
  const std::unique_ptr<BIO, FreeBio> to(BIO_new(BIO_s_mem()));
  PEM_write_bio(to.get(), name, "", der, length);
  OPENSSL_free(name);
  OPENSSL_free(header);
  OPENSSL_free(der);
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(to.get(), &text);
  return {text, static_cast<std::size_t>(bytes)};
}

/// How a part of a file is chosen; the values above these are those of the signers.
enum class Choice : std::uint8_t { kText, kChanged, kAuthority, kSigners };

unsigned signer_of(std::uint8_t choice) { return choice - static_cast<unsigned>(Choice::kSigners); }
std::uint8_t choice_of(unsigned signer) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(Choice::kSigners) + signer);
}

std::string part(Input& input, std::string Parts::*member) {
  const auto choice = input.number<std::uint8_t>();
  switch (Choice{choice}) {
    case Choice::kText:
      return std::string(input.text(input.number<std::uint16_t>()));
    case Choice::kChanged:
      return changed_certificate(input);
    case Choice::kAuthority:
      return world().authority();
    default:
      return world().by(signer_of(choice)).*member;
  }
}

std::string file_of(Input& input) {
  std::string chain;
  for (unsigned n = input.number<std::uint8_t>() % 4; n > 0; --n) {
    chain += part(input, &Parts::chain);
  }
  const std::string signature = part(input, &Parts::signature);
  const std::string body = part(input, &Parts::body);
  std::string header = world().by(0).header;
  const auto to = std::as_writable_bytes(std::span(header));
  store_little_endian(&to[8], static_cast<std::uint32_t>(chain.size()));
  store_little_endian(&to[12], static_cast<std::uint32_t>(signature.size()));
  store_little_endian(&to[16], static_cast<std::uint64_t>(body.size()));
  for (unsigned n = input.number<std::uint8_t>() % 4; n > 0; --n) {
    const auto at = input.number<std::uint8_t>() % kHeaderBytes;
    to[at] = input.number<std::byte>();
  }
  return header + chain + signature + body + std::string(input.text(kHeaderBytes));
}

void take(Input input) {
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  const bool is_whole = input.number<std::uint8_t>() % 8 == 0;
  const auto bytes = is_whole ? std::string(input.text(~std::size_t{0})) : file_of(input);
  world().check(bytes);
}

Script assembled(const std::vector<std::uint8_t>& chain, std::uint8_t signature,
                 std::uint8_t body) {
  Script script;
  script.number<std::uint8_t>(1).number(static_cast<std::uint8_t>(chain.size()));
  for (const std::uint8_t choice : chain) script.number(choice);
  return script.number(signature).number(body).number<std::uint8_t>(0);
}

}  // namespace

std::vector<std::string> seeds() {
  const auto authority = static_cast<std::uint8_t>(Choice::kAuthority);
  std::vector<std::string> made;
  for (unsigned i = 0; i < world().signers(); ++i) {
    const auto of = choice_of(i);
    made.push_back(assembled({of}, of, of));
    made.push_back(assembled({choice_of(0), of, authority}, of, of));
    made.push_back(assembled({of, choice_of(0)}, choice_of(0), choice_of(0)));
  }
  const Parts& good = world().by(0);
  made.push_back(Script()
                     .number<std::uint8_t>(0)
                     .text(good.header)
                     .text(good.chain)
                     .text(good.signature)
                     .text(good.body));
  return made;
}

}  // namespace gcr::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  gcr::fuzz::take({data, size});
  return 0;
}
