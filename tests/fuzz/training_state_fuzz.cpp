// training_state.json: how far a run has come.
#include "fuzz_input.h"
#include "train/save/training_state.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const hone::InputFile file("training_state.json");
  file.write(hone::text_of(data, size));
  hone::expect_answer([] { hone::read_run_state(file.path().parent_path()); });
  return 0;
}
