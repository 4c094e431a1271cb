#include "app/bench/grid/grid_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/error.h"
#include "core/files/file_bytes.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;
using Value = std::optional<std::string>;  // nothing: the setting is left out

constexpr uint64_t kMaxFileBytes = uint64_t{4} << 20;
constexpr size_t kMaxScenarios = 10'000;
const std::vector<std::string> kSections = {"defaults", "matrix", "include", "exclude", "limit_s", "memory"};

/// One value of an axis: of one key, or of all keys of a bundle.
using Point = std::vector<std::pair<std::string, Value>>;

struct Axis {
  std::string name, where;
  std::vector<Point> points;
  std::set<std::string> keys;  ///< that its points state
};

/// An entry of exclude: by name the values that it excludes, as value_of() has them.
struct Exclusion {
  std::vector<std::pair<std::string, std::vector<std::string>>> values;
  std::string where;
  bool used = false;
};

void expect_kind(const ConfigNode& node, Kind kind, const std::string& what, const std::string& fix) {
  if (node.kind == kind) return;
  throw UserError(fmt::format("{} is '{}', not a {}", what, shown(node), kind == Kind::kMapping ? "mapping" : "list"),
                  node.where, fix);
}

void refuse_repetitions(const ConfigNode& mapping) {
  std::set<std::string> names;
  for (const auto& [name, value] : mapping.members) {
    if (!names.insert(name).second) throw UserError(fmt::format("{} is stated twice", name), value.where, "keep one");
  }
}

class GridReader {
 public:
  GridReader(const ConfigNode& root, const std::vector<GridKey>& keys) : root_(root), keys_(keys) {}

  GridFile read() {
    check_sections();
    if (const ConfigNode* node = root_.find("defaults")) defaults_ = settings_of(*node, "defaults", {});
    if (const ConfigNode* node = root_.find("matrix")) read_axes(*node);
    if (const ConfigNode* node = root_.find("exclude")) read_exclusions(*node);
    if (const ConfigNode* node = root_.find("limit_s")) grid_.limit_s = seconds_of(*node);
    if (const ConfigNode* node = root_.find("memory")) grid_.memory = memory_of(*node);
    if (!axes_.empty()) expand();
    if (const ConfigNode* node = root_.find("include")) add_included(*node);
    if (grid_.scenarios.empty()) {
      throw UserError("the grid has no scenarios", root_.where,
                      "state lists of values under matrix, or scenarios under include");
    }
    complete();
    for (const Exclusion& exclusion : exclusions_) {
      if (!exclusion.used) grid_.notes.push_back(fmt::format("{}: this excludes nothing", exclusion.where));
    }
    return std::move(grid_);
  }

 private:
  void check_sections() const {
    refuse_repetitions(root_);
    for (const auto& [name, value] : root_.members) {
      if (std::find(kSections.begin(), kSections.end(), name) != kSections.end()) continue;
      const bool setting = find_grid_key(keys_, name) != nullptr;
      throw UserError(fmt::format("a grid has no section '{}'.{}", name, did_you_mean(name, kSections)), value.where,
                      setting ? "put it under defaults or matrix"
                              : "the sections are defaults, matrix, include, exclude, limit_s and memory");
    }
  }

  const GridKey& key_of(const std::string& name, const std::string& where) const {
    if (const GridKey* key = find_grid_key(keys_, name)) return *key;
    std::vector<std::string> names;
    for (const GridKey& key : keys_) names.push_back(key.name);
    for (const Axis& axis : axes_) names.push_back(axis.name);
    throw UserError(fmt::format("a scenario has no key '{}'.{}", name, did_you_mean(name, names)), where,
                    "the keys are the options of hone bench step, with underscores; ranks and global_batch");
  }

  /// The value of `key` in one scenario.
  Value value_in(const GridKey& key, const ConfigNode& node) const {
    const auto refuse = [&](const std::string& expected, const std::string& fix) {
      throw UserError(fmt::format("{} is '{}': expected {}", key.name, shown(node), expected), node.where, fix);
    };
    if (node.kind == Kind::kNull) return std::nullopt;
    if (node.kind == Kind::kMapping) refuse("a value", "a mapping is an axis of the matrix: names with their settings");
    if (node.kind == Kind::kSequence) {
      if (!key.takes_list) refuse("one value", "put a list of values under matrix");
      std::string text;
      for (const ConfigNode& item : node.items) {
        if (item.kind != Kind::kScalar) refuse("a list of words", "");
        text += (text.empty() ? "" : ",") + item.text;
      }
      return text.empty() ? Value() : Value(text);
    }
    bool on = false;
    if (key.is_switch) {
      if (!parse_bool(node.text, on)) refuse("true or false", "");
      return on ? "true" : "false";
    }
    double number = 0;
    if (!key.is_count()) return node.text;
    if (!parse_number(node.text, number) || number < 1 || number > 1e9 || number != std::floor(number)) {
      refuse("a whole number of at least 1", "");
    }
    return std::to_string(static_cast<int64_t>(number));
  }

  /// `base` with the settings of a mapping, `what`.
  GridSettings settings_of(const ConfigNode& node, const std::string& what, GridSettings base) const {
    for (const auto& [name, value] : point_of(node, what)) base.put(name, value);
    return base;
  }

  Point point_of(const ConfigNode& node, const std::string& what) const {
    Point point;
    if (node.kind == Kind::kNull) return point;
    expect_kind(node, Kind::kMapping, what, "write key: value");
    refuse_repetitions(node);
    for (const auto& [name, value] : node.members) {
      const GridKey& key = key_of(name, value.where);
      point.emplace_back(key.name, value_in(key, value));
    }
    return point;
  }

  void read_axes(const ConfigNode& matrix) {
    expect_kind(matrix, Kind::kMapping, "matrix", "write key: [value, value]");
    refuse_repetitions(matrix);
    for (const auto& [name, node] : matrix.members) {
      Axis axis = node.kind == Kind::kMapping ? bundles(name, node) : values(name, node);
      if (axis.points.empty()) throw UserError(fmt::format("{} has no values", name), node.where, "leave it out");
      for (const Axis& other : axes_) {
        for (const std::string& key : axis.keys) {
          if (!other.keys.contains(key)) continue;
          throw UserError(fmt::format("{} is stated by two axes: {} and {}", key, other.name, axis.name), node.where,
                          "state it in one of them");
        }
      }
      axes_.push_back(std::move(axis));
    }
  }

  Axis values(const std::string& name, const ConfigNode& node) const {
    const GridKey& key = key_of(name, node.where);
    Axis axis{.name = key.name, .where = node.where, .points = {}, .keys = {key.name}};
    if (node.kind != Kind::kSequence) axis.points.push_back({{key.name, value_in(key, node)}});
    for (const ConfigNode& item : node.items) axis.points.push_back({{key.name, value_in(key, item)}});
    return axis;
  }

  /// An axis whose values are named groups of settings.
  Axis bundles(const std::string& name, const ConfigNode& node) const {
    if (find_grid_key(keys_, name) != nullptr) {
      throw UserError(fmt::format("{} is a mapping: expected a list of values", name), node.where,
                      "an axis of named groups of settings has a name of its own, such as setup");
    }
    refuse_repetitions(node);
    Axis axis{.name = name, .where = node.where, .points = {}, .keys = {}};
    for (const auto& [label, settings] : node.members) {
      Point point = point_of(settings, fmt::format("{}.{}", name, label));
      for (const auto& [key, value] : point) axis.keys.insert(key);
      point.emplace_back(name, label);
      axis.points.push_back(std::move(point));
    }
    return axis;
  }

  void read_exclusions(const ConfigNode& node) {
    expect_kind(node, Kind::kSequence, "exclude", "write a list of combinations: [{mode: full, ranks: 1}]");
    for (const ConfigNode& entry : node.items) {
      expect_kind(entry, Kind::kMapping, "an entry of exclude", "write {key: value, key: value}");
      Exclusion exclusion{.values = {}, .where = entry.where};
      for (const auto& [name, values] : entry.members) exclusion.values.push_back(excluded(name, values));
      if (exclusion.values.empty()) throw UserError("this would exclude everything", entry.where, "name a key");
      exclusions_.push_back(std::move(exclusion));
    }
  }

  std::pair<std::string, std::vector<std::string>> excluded(const std::string& name, const ConfigNode& node) const {
    const bool label = std::any_of(axes_.begin(), axes_.end(), [&](const Axis& axis) { return axis.name == name; }) &&
                       find_grid_key(keys_, name) == nullptr;
    const GridKey key = label ? GridKey{.name = name, .flag = {}} : key_of(name, node.where);
    std::vector<std::string> values;
    const auto add = [&](const ConfigNode& value) { values.push_back(value_in(key, value).value_or(key.usual)); };
    if (node.kind != Kind::kSequence) add(node);
    for (const ConfigNode& item : node.items) add(item);
    return {key.name, values};
  }

  double seconds_of(const ConfigNode& node) const {
    double seconds = 0;
    if (node.kind != Kind::kScalar || !parse_number(node.text, seconds) || seconds <= 0) {
      throw UserError(fmt::format("limit_s is '{}': expected seconds above 0", shown(node)), node.where,
                      "leave it out for 1800");
    }
    return seconds;
  }

  GridMemory memory_of(const ConfigNode& node) const {
    std::vector<std::string> words;
    if (node.kind == Kind::kScalar) words.push_back(node.text);
    for (const ConfigNode& item : node.items) words.push_back(shown(item));
    return parse_grid_memory(words, node.where);
  }

  bool is_excluded(const GridSettings& settings) {
    const auto matches = [&](const Exclusion& exclusion) {
      return std::all_of(exclusion.values.begin(), exclusion.values.end(), [&](const auto& entry) {
        const std::string value = value_of(settings, entry.first, keys_);
        return std::find(entry.second.begin(), entry.second.end(), value) != entry.second.end();
      });
    };
    bool excluded = false;
    for (Exclusion& exclusion : exclusions_) {
      if (!matches(exclusion)) continue;
      exclusion.used = true;
      excluded = true;
    }
    return excluded;
  }

  /// Adds the combinations of the axes; the last axis varies fastest.
  void expand() {
    size_t count = 1;
    for (const Axis& axis : axes_) {
      count *= axis.points.size();
      if (count <= kMaxScenarios) continue;
      throw UserError(fmt::format("the matrix has more than {} combinations", kMaxScenarios), axis.where,
                      "shorten its lists, or share them out among several files");
    }
    for (size_t number = 0; number < count; ++number) {
      GridSettings settings = defaults_;
      size_t below = count, rest = number;
      for (const Axis& axis : axes_) {
        below /= axis.points.size();
        for (const auto& [name, value] : axis.points[rest / below]) settings.put(name, value);
        rest %= below;
      }
      if (!is_excluded(settings)) add(std::move(settings), axes_.front().where);
    }
  }

  void add_included(const ConfigNode& node) {
    expect_kind(node, Kind::kSequence, "include", "write a list of scenarios: [{model: qwen3-8b, layers: 12}]");
    for (const ConfigNode& entry : node.items) add(settings_of(entry, "an entry of include", defaults_), entry.where);
  }

  void add(GridSettings settings, const std::string& where) {
    GridScenario scenario = make_scenario(std::move(settings), keys_, where);
    if (!commands_.insert(scenario.command_line()).second) return;
    for (const auto& [name, value] : scenario.settings) {
      if (std::find(grid_.names.begin(), grid_.names.end(), name) == grid_.names.end()) grid_.names.push_back(name);
    }
    grid_.scenarios.push_back(std::move(scenario));
  }

  /// Gives each scenario the values that count of what only others state; its command stays.
  void complete() {
    for (GridScenario& scenario : grid_.scenarios) {
      for (const std::string& name : grid_.names) {
        const std::string value = value_of(scenario.settings, name, keys_);
        if (!value.empty() && has_effect(scenario.settings, name, keys_)) scenario.settings.put(name, value);
      }
    }
  }

  const ConfigNode& root_;
  const std::vector<GridKey>& keys_;
  GridFile grid_;
  GridSettings defaults_;
  std::vector<Axis> axes_;
  std::vector<Exclusion> exclusions_;
  std::set<std::string> commands_;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

GridFile parse_grid(const ConfigNode& root, const std::vector<GridKey>& keys) { return GridReader(root, keys).read(); }

GridFile read_grid_file(const std::string& path, const std::vector<GridKey>& keys, const ScenarioSizes& sizes) {
  const std::string text = read_whole_file(path, kMaxFileBytes, FileSource::kAlsoPipe);
  const ConfigNode root = parse_config_text(text, path, path.ends_with(".json"));
  if (!is_scenario_file(root)) {
    if (sizes.ranks.empty() && !sizes.global_batch) return parse_grid(root, keys);
    throw UserError("a grid states its ranks and batches in the file", "--ranks, --global-batch",
                    "write ranks under matrix and global_batch under defaults; these options are for a file of "
                    "scenarios");
  }
  std::vector<std::string> notes;
  GridFile grid = parse_grid(grid_of_scenarios(root, sizes, notes), keys);
  grid.notes.insert(grid.notes.begin(), notes.begin(), notes.end());
  return grid;
}

GridMemory parse_grid_memory(const std::vector<std::string>& words, const std::string& where) {
  GridMemory memory{.plan = false, .device = false, .host = false};
  const std::vector<std::string> known = {"plan", "device", "host", "none"};
  for (const std::string& text : words) {
    for (const std::string& word : split(text)) {
      if (std::find(known.begin(), known.end(), word) == known.end()) {
        throw UserError(fmt::format("'{}' does not say what memory is counted by.{}", word, did_you_mean(word, known)),
                        where, "use plan, device and host, or none");
      }
      memory.plan |= word == "plan";
      memory.device |= word == "device";
      memory.host |= word == "host";
    }
  }
  return memory;
}

void keep_only(GridFile& grid, const std::vector<std::string>& only, const std::vector<GridKey>& keys) {
  for (const std::string& text : only) {
    const size_t equals = text.find('=');
    const std::string written = text.substr(0, equals);
    const GridKey* key = find_grid_key(keys, written);
    const std::string name = key ? key->name : written;
    if (equals == std::string::npos) {
      throw UserError(fmt::format("'{}' is not KEY=VALUE", text), "--only",
                      "such as --only ranks=2 or --only mode=lora");
    }
    if (!key && std::find(grid.names.begin(), grid.names.end(), name) == grid.names.end()) {
      throw UserError(fmt::format("no scenario has a key '{}'.{}", name, did_you_mean(name, grid.names)), "--only",
                      "name a key of the grid");
    }
    const std::string whole = text.substr(equals + 1);
    const std::vector<std::string> values = split(whole);
    std::erase_if(grid.scenarios, [&](const GridScenario& scenario) {
      const std::string value = value_of(scenario.settings, name, keys);
      return value != whole && std::find(values.begin(), values.end(), value) == values.end();
    });
    if (grid.scenarios.empty()) {
      throw UserError(fmt::format("no scenario of the grid has {}", text), "--only", "--dry-run lists the scenarios");
    }
  }
}

}  // namespace hone
