// config.json: what a decoder is built of, down to the shapes of its parameters.
#include "fuzz_input.h"
#include "models/registry.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hone::InputFile file("config.json");
  file.write(hone::text_of(data, size));
  hone::expect_answer([] {
    const hone::DecoderConfig config = hone::read_decoder_config(hone::HfConfig::read_file(file.path()));
    if (config.layers.size() > 100 || config.moe.num_experts > 1000) return;  // right, and slow
    hone::ParameterStore store;
    hone::Placement placement;
    const hone::Decoder decoder(config, store, placement, hone::DType::kF32);
  });
  return 0;
}
