// `.metadata` of a sharded checkpoint, beside the files that those of the seeds name.
#include "fuzz_input.h"
#include "weights/sharded_checkpoint.h"

namespace {

const std::filesystem::path kCase =
    std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/sharded/fsdp2_qwen3_moe/pytorch_model_fsdp_0";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hone::InputFile file(".metadata");
  const std::filesystem::path folder = file.path().parent_path();
  static const bool copied = [&] {
    for (const char* name : {"__0_0.distcp", "__1_0.distcp"}) std::filesystem::copy_file(kCase / name, folder / name);
    return true;
  }();
  if (!copied) return 0;
  file.write(hone::text_of(data, size));
  hone::expect_answer([&] {
    const hone::ShardedCheckpoint checkpoint = hone::ShardedCheckpoint::open(folder);
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      hone::expect_answer([&, &tensor = tensor] { checkpoint.read(tensor); });
    }
  });
  return 0;
}
