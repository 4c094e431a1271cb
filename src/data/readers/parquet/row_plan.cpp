#include "data/readers/parquet/row_plan.h"

#include <fmt/format.h>

#include <set>

#include "data/readers/parquet/bytes.h"
#include "data/readers/parquet/json_text.h"
#include "data/readers/parquet/value_form.h"

namespace hone::parquet {

namespace {

constexpr int kMostNesting = 64;  // the deepest nesting of lists, objects and maps in a row
constexpr int kMostGroups = 200;  // the most groups of the schema around one column: a level fits a byte

/// The definition and repetition levels of the groups around a value.
struct Levels {
  int definition = 0, repetition = 0;
};

class PlanBuilder {
 public:
  explicit PlanBuilder(const std::vector<SchemaElement>& schema) : schema_(schema) {}

  RowPlan build() {
    if (!schema_.front().group) fault("the schema has no columns");
    ends_.resize(schema_.size());
    const size_t end = find_end(0, 0);
    if (end != schema_.size()) fault("the schema has {} columns outside its tree", schema_.size() - end);
    plan_.root = object(0, {}, false, -1, "");
    return std::move(plan_);
  }

 private:
  /// Finds where each subtree ends.
  size_t find_end(size_t at, int depth) {
    if (at >= schema_.size()) fault("the schema ends in the middle");
    if (depth > kMostGroups) fault("the columns are nested too deep");
    size_t end = at + 1;
    for (int32_t i = 0; i < schema_[at].children; ++i) end = find_end(end, depth + 1);
    return ends_[at] = end;
  }

  std::vector<size_t> children(size_t at) const {
    std::vector<size_t> found;
    for (size_t child = at + 1; child < ends_[at]; child = ends_[child]) found.push_back(child);
    return found;
  }

  const SchemaElement& element(size_t at) const { return schema_[at]; }
  bool repeated(size_t at) const { return element(at).repetition == Repetition::kRepeated; }

  /// The value of a schema node that is not repeated, or whose repetition a list has taken.
  static RowNode start(RowNode::Shape shape, const std::string& name, Levels around, bool optional) {
    RowNode node;
    node.shape = shape;
    node.name = name;
    try {
      append_json_text(node.key, name);
    } catch (const ParquetFault&) {
      fault("the name of a column is not UTF-8");
    }
    node.key += ':';
    node.floor = around.definition;
    node.present = around.definition + (optional ? 1 : 0);
    return node;
  }

  static void check_nesting(int depth) {
    if (depth > kMostNesting) fault("the columns are nested too deep");
  }
  static std::string below(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  RowNode leaf(size_t at, Levels around, bool optional, const std::string& path) {
    RowNode node = start(RowNode::Shape::kLeaf, element(at).name, around, optional);
    Leaf leaf;
    leaf.path = path;
    leaf.physical = element(at).physical;
    leaf.length = element(at).length;
    leaf.deepest_definition = node.present;
    leaf.deepest_repetition = around.repetition;
    set_value_form(element(at), leaf);
    node.first_leaf = plan_.leaves.size();
    plan_.leaves.push_back(std::move(leaf));
    node.last_leaf = plan_.leaves.size();
    return node;
  }

  RowNode object(size_t at, Levels around, bool optional, int depth, const std::string& path) {
    check_nesting(depth);
    RowNode node = start(RowNode::Shape::kObject, element(at).name, around, optional);
    node.first_leaf = plan_.leaves.size();
    std::set<std::string_view> names;
    for (const size_t child : children(at)) {
      const std::string& name = element(child).name;
      node.repeated_names = !names.insert(name).second || node.repeated_names;
      node.children.push_back(value(child, {node.present, around.repetition}, depth + 1, below(path, name)));
    }
    node.last_leaf = plan_.leaves.size();
    if (at != 0 && node.children.empty()) fault("the column '{}' has no columns of its own", path);
    return node;
  }

  /// A list or map whose elements begin with `around`'s next levels; `fill` adds what an element has.
  template <class Fill>
  RowNode repeated_node(RowNode::Shape shape, const std::string& name, Levels around, bool optional, const Fill& fill) {
    RowNode node = start(shape, name, around, optional);
    node.first_leaf = plan_.leaves.size();
    node.repetition = around.repetition + 1;
    fill(node, Levels{node.present + 1, node.repetition});
    node.last_leaf = plan_.leaves.size();
    return node;
  }

  RowNode value(size_t at, Levels around, int depth, const std::string& path) {
    check_nesting(depth);
    const SchemaElement& node = element(at);
    if (node.group && node.logical.kind == Logical::kList) return list(at, around, depth, path);
    if (node.group && node.logical.kind == Logical::kMap) return map(at, around, depth, path);
    if (!repeated(at)) {
      const bool optional = node.repetition == Repetition::kOptional;
      return node.group ? object(at, around, optional, depth, path) : leaf(at, around, optional, path);
    }
    // A list without a group around it: neither it nor an element is ever null.
    return repeated_node(RowNode::Shape::kList, node.name, around, false, [&](RowNode& made, Levels levels) {
      made.children.push_back(node.group ? object(at, levels, false, depth + 1, path) : leaf(at, levels, false, path));
    });
  }

  /// The only child of a list or map, which is repeated.
  size_t repeated_child(size_t at, const std::string& path) const {
    if (element(at).children != 1) fault("the list or map '{}' has {} columns, not one", path, element(at).children);
    if (repeated(at)) fault("the list or map '{}' is repeated itself", path);
    const size_t child = at + 1;
    if (!repeated(child)) fault("the column of the list or map '{}' is not repeated", path);
    return child;
  }

  RowNode list(size_t at, Levels around, int depth, const std::string& path) {
    const size_t child = repeated_child(at, path);
    const bool optional = element(at).repetition == Repetition::kOptional;
    return repeated_node(RowNode::Shape::kList, element(at).name, around, optional, [&](RowNode& made, Levels levels) {
      made.children.push_back(list_element(at, child, levels, depth + 1, path));
    });
  }

  /// What the repeated node `child` of a list stands for: the element itself, or a group around it.
  RowNode list_element(size_t at, size_t child, Levels levels, int depth, const std::string& path) {
    check_nesting(depth);
    const std::string below_path = below(path, element(child).name);
    if (!element(child).group) return leaf(child, levels, false, below_path);
    const int count = element(child).children;
    if (count == 0) fault("the list '{}' has no element", path);
    if (count > 1) return object(child, levels, false, depth, below_path);
    const size_t inner = child + 1;
    if (repeated(inner)) return repeated_element(child, inner, levels, depth, below_path);
    const std::string& name = element(child).name;
    if (name == "array" || name == element(at).name + "_tuple") return object(child, levels, false, depth, below_path);
    return value(inner, levels, depth, below(below_path, element(inner).name));
  }

  /// A list of lists where neither has a group around its elements.
  RowNode repeated_element(size_t child, size_t inner, Levels levels, int depth, const std::string& path) {
    if (element(child).logical.kind != Logical::kList) fault("the list '{}' repeats what is not a list", path);
    if (element(inner).group && (element(inner).children == 0 || !repeated(inner + 1))) {
      fault("the list '{}' repeats a list of another form", path);
    }
    return value(inner, levels, depth, below(path, element(inner).name));
  }

  RowNode map(size_t at, Levels around, int depth, const std::string& path) {
    const size_t pair = repeated_child(at, path);
    const std::vector<size_t> parts = children(pair);
    if (!element(pair).group || parts.empty() || parts.size() > 2) fault("the map '{}' has no keys and values", path);
    if (element(parts[0]).repetition != Repetition::kRequired) fault("the keys of the map '{}' may be null", path);
    if (parts.size() == 1) return list(at, around, depth, path);
    const bool optional = element(at).repetition == Repetition::kOptional;
    return repeated_node(RowNode::Shape::kMap, element(at).name, around, optional, [&](RowNode& made, Levels levels) {
      for (const size_t part : parts) {
        made.children.push_back(value(part, levels, depth + 1, below(path, element(part).name)));
      }
    });
  }

  const std::vector<SchemaElement>& schema_;
  std::vector<size_t> ends_;
  RowPlan plan_;
};

}  // namespace

RowPlan make_row_plan(const Footer& footer) { return PlanBuilder(footer.schema).build(); }

}  // namespace hone::parquet
