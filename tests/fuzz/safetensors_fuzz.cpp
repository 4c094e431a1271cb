#include "fuzz_input.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hone::InputFile file("model.safetensors");
  file.write(hone::text_of(data, size));
  hone::expect_answer([&] {
    const hone::SafetensorsFile tensors(file.path());
    for (const hone::SafetensorsEntry& entry : tensors.entries()) {
      std::string bytes(entry.bytes, '\0');
      tensors.read(entry, 0, bytes.data(), bytes.size());
      hone::expect_answer([&] { tensors.read_floats(entry.name); });
      hone::expect_answer([&] { tensors.read_integers(entry.name); });
    }
  });
  return 0;
}
