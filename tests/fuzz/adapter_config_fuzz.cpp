// adapter_config.json beside the weights of a small model's adapter, down to the ranks that its patterns give.
#include "fuzz_input.h"
#include "models/registry.h"
#include "weights/adapter.h"

namespace {

const std::filesystem::path kCase = std::filesystem::path(HONE_SOURCE_DIR) / "tests/fixtures/goldens/qwen3_moe";

struct Model {
  Model()
      : decoder(hone::read_decoder_config(hone::HfConfig::read(kCase / "model")), store, placement, hone::DType::kF32) {
  }
  hone::ParameterStore store;
  hone::Placement placement;
  hone::Decoder decoder;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Model model;
  static const hone::InputFile file("adapter_config.json");
  const std::filesystem::path folder = file.path().parent_path();
  static const bool copied = std::filesystem::copy_file(kCase / "lora_experts_init/adapter_model.safetensors",
                                                        folder / "adapter_model.safetensors");
  if (!copied) return 0;
  file.write(hone::text_of(data, size));
  hone::expect_answer([&] {
    const hone::AdapterDescription adapter = hone::describe_adapter(folder, model.store);
    Model adapted;
    hone::attach_lora(adapted.store, adapter.lora);
  });
  return 0;
}
