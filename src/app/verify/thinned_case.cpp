#include "app/verify/thinned_case.h"

#include "app/verify/check.h"
#include "app/verify/replay.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"

namespace hone {

namespace {

void write_thinned(const std::filesystem::path& path, HostTensors tensors) {
  ReferenceTensors result;
  for (auto& [name, tensor] : tensors) result[name] = thinned(std::move(tensor));
  write_reference_tensors(path, result);
}

HostTensors initial_weights(const std::filesystem::path& model) {
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  return Replay(model, stream, {.max_tokens = 1, .max_documents = 1, .max_supervised = 1, .max_seqlen = 1}, {})
      .values();
}

}  // namespace

void thin_case(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::filesystem::exists(to)) throw UserError("it exists: remove it or choose another folder", to.string());
  GoldenCase::read(from);
  const std::filesystem::path final_file = from / "full_final.safetensors";
  if (!std::filesystem::exists(final_file)) throw UserError("the case is thinned already", from.string());
  const HostTensors initial = initial_weights(from / "model");
  HostTensors final = read_host_tensors(final_file);
  std::erase_if(final, [&](const auto& tensor) { return !initial.contains(tensor.first); });
  const HostTensors change = changes(initial, final, final_file.string());
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  for (const char* file : {"grads.safetensors", "packed_grads.safetensors", "accumulation_grads.safetensors"}) {
    write_thinned(to / file, read_host_tensors(from / file));
  }
  std::filesystem::remove(to / final_file.filename());
  write_thinned(to / "full_change.safetensors", change);
}

}  // namespace hone
