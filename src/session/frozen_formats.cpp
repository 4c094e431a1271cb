#include "session/frozen_formats.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"

namespace hone {

namespace {

/// The format of a list with this name; null: none.
template <class Format>
const Format* format_called(const std::string& name, const std::vector<const Format*>& formats) {
  const auto it = std::ranges::find(formats, name, &Format::name);
  return it == formats.end() ? nullptr : *it;
}

}  // namespace

BaseFormat BaseFormat::parse(const std::string& name, const std::string& key) {
  BaseFormat format;
  format.as_stored_ = name == "auto";
  if (name == "dtype" || format.as_stored_) return format;
  format.packed_ = format_called(name, packed_formats());
  if (format.packed_ != nullptr) return format;
  throw UserError(fmt::format("frozen weights are not held in '{}'", name), key,
                  fmt::format("use one of {}", fmt::join(base_format_names(), ", ")));
}

std::string_view BaseFormat::name() const {
  if (packed_ != nullptr) return packed_->name();
  return as_stored_ ? "auto" : "dtype";
}

ExpertFormat ExpertFormat::parse(const std::string& name, const std::string& key) {
  ExpertFormat format;
  format.bfloat16_ = name == "bfloat16";
  if (name == "auto" || format.bfloat16_) return format;
  format.other_ = format_called(name, expert_formats());
  if (format.other_ != nullptr) return format;
  throw UserError(fmt::format("experts' weights are not held in '{}'", name), key,
                  fmt::format("use one of {}", fmt::join(expert_format_names(), ", ")));
}

const WeightFormat& ExpertFormat::format() const { return other_ == nullptr ? dense_format() : *other_; }

std::string_view ExpertFormat::name() const {
  if (other_ != nullptr) return other_->name();
  return bfloat16_ ? "bfloat16" : "auto";
}

const std::vector<std::string>& base_format_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"dtype", "auto"};
    for (const PackedFormat* format : packed_formats()) all.emplace_back(format->name());
    return all;
  }();
  return names;
}

const std::vector<std::string>& expert_format_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"auto", "bfloat16"};
    for (const WeightFormat* format : expert_formats()) all.emplace_back(format->name());
    return all;
  }();
  return names;
}

const std::vector<const WeightFormat*>& expert_formats() {
  static const std::vector<const WeightFormat*> formats = [] {
    std::vector<const WeightFormat*> all = {&int8_format()};
    for (const PackedFormat* format : packed_formats()) {
      if (format != &packed_int8_format()) all.push_back(format);
    }
    return all;
  }();
  return formats;
}

}  // namespace hone
