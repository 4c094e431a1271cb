// Python pickles as data: which objects a file describes, without making any.
//
// A pickle is a program for a stack machine that may call anything. Here it runs as far as values go: numbers, texts,
// tuples, lists and dictionaries are read, and a class or function is only its name. Calling it (REDUCE, NEWOBJ, BUILD)
// gives an object that remembers name, arguments and state. Names that are not on the caller's list are refused.
// Format: Python's Lib/pickletools.py, protocols 2 to 5.
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
    kList,        ///< and sets
    kDictionary,  ///< items: a key and its value in turn
    kGlobal,      ///< text: "module.name"
    kObject,      ///< text: "module.name" of what was called
    kPersistent,  ///< items: the identifier of what is stored elsewhere
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;    ///< and 0 or 1 of a bool
  std::string_view text;  ///< of what the pickle keeps
  std::vector<const PickleValue*> items;
  const PickleValue* arguments = nullptr;  ///< the tuple that an object was called with
  PickleValue* state = nullptr;            ///< of an object; null without

  bool is(Kind other) const { return kind == other; }
  bool is_object(std::string_view name) const { return kind == Kind::kObject && text == name; }
  /// The value of a text key: of a dictionary, or of the dictionary that is an object's state; null if absent, or not
  /// among the first 64 (objects have a few fields).
  const PickleValue* find(std::string_view key) const;
};

/// The values of one pickle. They may refer to each other in circles, so readers go no deeper than they expect to.
class Pickle {
 public:
  /// `allowed` has the full names of classes and functions. UserError with `where`: a name that is not allowed, an
  /// instruction that is not read, bytes that are cut off, more values than a file of this size has (kMostMemory).
  static Pickle parse(std::string bytes, const std::set<std::string>& allowed, const std::string& where);

  const PickleValue& root() const { return *root_; }

  /// What the values of a pickle may take, beside ten times its bytes.
  static constexpr uint64_t kMostMemory = uint64_t{512} << 20;

 private:
  friend class PickleReader;
  std::unique_ptr<const std::string> bytes_;
  std::set<std::string> names_;  // of classes and functions
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace hone
