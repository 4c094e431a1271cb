#include "weights/card_file.h"

#include <fstream>
#include <string>

#include "core/files/durable_file.h"

namespace hone {

bool has_own_card(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::path card = directory / kCardName;
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(card, error))) return false;
  std::string beginning(16 * 1024, '\0');
  std::ifstream file(card, std::ios::binary);
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<size_t>(file.gcount()));
  return beginning.find(kCardMarker) != std::string::npos;
}

void copy_own_card(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (has_own_card(from)) copy_durably(from / kCardName, to / kCardName);
}

}  // namespace hone
