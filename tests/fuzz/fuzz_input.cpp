#include "fuzz_input.h"

#include <stdlib.h>

#include <fstream>

#include "core/base/error.h"

namespace hone {

void expect_answer(const std::function<void()>& read) {
  try {
    read();
  } catch (const UserError&) {
  }
}

InputFile::InputFile(const std::string& name) {
  std::string folder = (std::filesystem::temp_directory_path() / "hone_fuzz_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) abort();
  path_ = std::filesystem::path(folder) / name;
}

InputFile::~InputFile() {
  std::error_code ignored;
  std::filesystem::remove_all(path_.parent_path(), ignored);
}

void InputFile::write(std::string_view bytes) const {
  std::ofstream(path_, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace hone
