#include "report/page/record_rows.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

namespace {

bool is_row(const Json& json) { return json.is_object() && row_step(json) >= 0; }

}  // namespace

int64_t row_step(const Json& row) { return whole_number<int64_t>(row.value("step", Json())).value_or(-1); }

std::string row_text(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_string() ? found->get<std::string>() : std::string();
}

void FollowedRows::read_on(const std::function<void()>& anew, const std::function<void(const Json& row)>& row) {
  const auto begin = [&] {
    broken_ = 0;
    anew();
  };
  failure_.clear();
  try {
    lines_.read_on(begin, [&](std::string_view line) {
      const Json json = parse_json(line);
      if (is_row(json)) {
        row(json);
      } else if (!line.empty()) {
        ++broken_;
      }
    });
  } catch (const UserError& failed) {
    failure_ = failed.message();
  }
}

void FollowedRows::last(const std::function<void(const Json& row)>& row) const {
  if (lines_.unfinished().empty()) return;
  if (const Json json = parse_json(lines_.unfinished()); is_row(json)) row(json);
}

void FollowedRows::note(std::vector<std::string>& notes) const {
  const std::string name = lines_.path().filename().string();
  if (!failure_.empty()) notes.push_back(fmt::format("{} cannot be read: {}", name, failure_));
  bool cut = !lines_.unfinished().empty();
  last([&](const Json&) { cut = false; });
  if (cut) notes.push_back(name + ": the last line is not complete, and is left out");
  const int64_t left_out = broken_ + lines_.too_long();
  if (left_out > 0) {
    notes.push_back(fmt::format("{}: {} line{} left out that {} not rows of a run", name, left_out, plural(left_out),
                                left_out == 1 ? "is" : "are"));
  }
}

}  // namespace hone
