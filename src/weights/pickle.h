// Parses Python pickles as data, without creating the objects that they describe.
//
// A pickle is a program for a stack machine that may call any function. This parser only builds values: it reads
// numbers, texts, tuples, lists and dictionaries; a class or function is represented by its name, and calling it
// (REDUCE, NEWOBJ, BUILD) gives an object with name, arguments and state. Names that are not on the caller's list are
// rejected. Format: Python's Lib/pickletools.py, protocols 2 to 5.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace hone {

struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInteger,
    kFloat,
    kText,
    kBytes,
    kTuple,
    kList,        ///< also for sets
    kDictionary,  ///< items: keys and values alternately
    kGlobal,      ///< text: "module.name"
    kObject,      ///< text: "module.name" of the called class or function
    kPersistent,  ///< items: the identifier of an external object
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;    ///< also 0 or 1 for a bool
  std::string_view text;  ///< a view of the pickle's bytes
  std::vector<const PickleValue*> items;
  const PickleValue* arguments = nullptr;  ///< arguments of the call, a tuple
  PickleValue* state = nullptr;            ///< an object's; may be null

  bool is(Kind other) const { return kind == other; }
  bool is_object(std::string_view name) const { return kind == Kind::kObject && text == name; }
  /// Looks up a text key in a dictionary, or in the dictionary that is an object's state; null if absent, or not among
  /// the first 64 (objects have a few fields).
  const PickleValue* find(std::string_view key) const;
};

/// The values of one pickle. References may be cyclic, so readers must limit their depth.
class Pickle {
 public:
  /// `allowed` has the full names of classes and functions. UserError with `where`: a name that is not allowed, an
  /// unsupported instruction, truncated bytes, more values than plausible for the file's size (kMostMemory).
  static Pickle parse(std::string bytes, const std::set<std::string>& allowed, const std::string& where);

  const PickleValue& root() const { return *root_; }

  /// Limit of the values' memory, in addition to ten times the pickle's bytes.
  static constexpr uint64_t kMostMemory = uint64_t{512} << 20;

 private:
  friend class PickleReader;
  std::unique_ptr<const std::string> bytes_;
  std::set<std::string> names_;  // names of classes and functions
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace hone
