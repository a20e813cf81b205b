#include "migrate-agent/migration/source/layers.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "migrate-agent/process/layer/changes.h"
#include "migrate-agent/process/layer/pack_writer.h"

namespace gcr::migration::source {
namespace {

/// The changes as a pack, in memory.
Result<UniqueFd> pack(const layer::Tree& tree, const layer::Changes& changes,
                      std::uint64_t max_bytes, layer::Notes& notes) {
  UniqueFd file(::memfd_create("gcr-layer", MFD_CLOEXEC));
  if (!file) return Error::from_errno(errno, "cannot make a file in memory");
  GCR_ASSIGN(const layer::Packed packed, layer::write_pack(tree, changes, file.get(), max_bytes));
  for (const std::string& note : packed.notes.list()) notes.add(note);
  if (::lseek(file.get(), 0, SEEK_SET) == 0) return file;
  return Error::from_errno(errno, "cannot read a file in memory");
}

}  // namespace

std::string layer_image(std::size_t tree, std::size_t round) {
  return fmt::format("layer-{}-{}.img", tree, round);
}

Result<OutgoingLayers> OutgoingLayers::open(pid_t init, std::uint64_t max_bytes) {
  OutgoingLayers layers;
  GCR_ASSIGN(layer::Trees found, layer::trees_of(init));
  for (layer::Tree& tree : found.trees) layers.trees_.push_back({std::move(tree), {}, {}});
  layers.volumes_ = std::move(found.volumes);
  layers.max_bytes_ = max_bytes;
  return layers;
}

Status OutgoingLayers::send(images::Sink& sink, const layer::KnownFiles& known) {
  for (std::size_t number = 0; number < trees_.size(); ++number) {
    Outgoing& one = trees_[number];
    GCR_ASSIGN(layer::Snapshot now, layer::scan(one.tree, {.max_bytes = max_bytes_}, known));
    const layer::Changes changes = layer::changes(one.last, now);
    one.last = std::move(now);
    if (changes.empty()) continue;
    GCR_ASSIGN(UniqueFd content, pack(one.tree, changes, max_bytes_, notes_));
    one.packs.push_back(layer_image(number, one.packs.size()));
    GCR_TRY(sink.take(one.packs.back(), std::move(content)));
  }
  return {};
}

std::vector<proto::Layer> OutgoingLayers::sent() const {
  std::vector<proto::Layer> layers;
  for (const Outgoing& one : trees_) {
    if (one.packs.empty()) continue;
    proto::Layer& layer = layers.emplace_back();
    layer.set_point(one.tree.point);
    layer.mutable_packs()->Assign(one.packs.begin(), one.packs.end());
  }
  return layers;
}

std::vector<std::string> OutgoingLayers::notes() const {
  std::vector<std::string> notes = notes_.list();
  for (const Outgoing& one : trees_) {
    for (std::string& note : one.last.notes.list()) notes.push_back(std::move(note));
  }
  for (const layer::Volume& volume : volumes_) {
    notes.push_back(fmt::format("the volume at {} is not carried", volume.point));
  }
  return notes;
}

}  // namespace gcr::migration::source
