#include "dist/control/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include "core/base/error.h"

namespace hone {

std::string reason_of(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  if (!known) return error.what();
  return known->where().empty() ? known->message() : fmt::format("{} ({})", known->message(), known->where());
}

void await_loss(Control& control) {
  constexpr int kTries = 100;
  constexpr auto kPause = std::chrono::milliseconds(20);
  for (int i = 0; i < kTries; ++i) {
    control.check();
    std::this_thread::sleep_for(kPause);
  }
}

void throw_broken(Control& control, const std::string& problem) {
  await_loss(control);
  throw Error(ExitCode::kDeviceFailed, problem, "", "look at the other ranks' logs");
}

bool Control::any(bool mine) {
  const std::vector<std::string> all = exchange(mine ? "1" : "");
  return std::any_of(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
}

std::string Control::first_stated(std::string_view mine) {
  for (std::string& text : exchange(mine)) {
    if (!text.empty()) return std::move(text);
  }
  return "";
}

void Control::check_same(const std::string& what, const std::string& text) {
  const std::vector<std::string> all = exchange(text);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first(all[0]), other(all[rank]);
    std::string a, b;
    bool more_a = true, more_b = true;
    do {
      more_a = static_cast<bool>(std::getline(first, a));
      more_b = static_cast<bool>(std::getline(other, b));
    } while (more_a && more_b && a == b);
    throw UserError(fmt::format("rank {} has another {} than rank 0: '{}' where rank 0 has '{}'", rank, what,
                                more_b ? b : "nothing", more_a ? a : "nothing"),
                    what, "start all ranks with the same files and arguments");
  }
}

}  // namespace hone
