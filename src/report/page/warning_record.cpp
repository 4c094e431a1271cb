#include "report/page/warning_record.h"

#include <algorithm>
#include <utility>

#include "core/text/json.h"
#include "report/page/record_text.h"

namespace hone {

namespace {

constexpr size_t kMostWarnings = 100;  // different ones

}  // namespace

void WarningRecord::add(std::string_view line) {
  constexpr size_t kTime = 23, kLevel = 25, kText = 34;  // report/log.cpp
  const bool dated = line.size() >= kText && line[4] == '-' && line[13] == ':';
  if (!dated) {
    if (open_ && line.starts_with("  ")) open_->text += "\n" + clipped(line.substr(2), 500);
    return;
  }
  close();
  const std::string_view level = line.substr(kLevel, 7);
  if (level != "WARNING" && level != "ERROR  ") return;
  open_ = Warning{.level = level == "WARNING" ? "warning" : "error",
                  .text = clipped(line.substr(kText), 1000),
                  .last = std::string(line.substr(0, kTime - 4))};
}

void WarningRecord::close() {
  if (!open_) return;
  const auto same = [&](const Warning& warning) { return warning.text == open_->text; };
  const auto found = std::find_if(warnings_.begin(), warnings_.end(), same);
  open_->times = 1;
  if (found != warnings_.end()) {
    open_->times += found->times;
    warnings_.erase(found);
  }
  warnings_.push_back(*std::exchange(open_, std::nullopt));
  if (warnings_.size() > kMostWarnings) warnings_.erase(warnings_.begin());
}

Json WarningRecord::json() const {
  WarningRecord closed = *this;
  closed.close();
  Json all = Json::array();
  for (const Warning& warning : closed.warnings_) {
    all.push_back({{"level", warning.level},
                   {"text", without_secrets(warning.text)},
                   {"times", warning.times},
                   {"last", warning.last}});
  }
  return all;
}

}  // namespace hone
