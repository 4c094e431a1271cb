// Python pickles as data: which objects a file describes, without making any.
//
// A pickle is a program for a stack machine that may call anything. Here it runs as far as values go: numbers, texts,
// tuples, lists and dictionaries are read, and a class or function is only its name. Calling it (REDUCE, NEWOBJ, BUILD)
// gives an object that remembers name, arguments and state. Names that are not on the caller's list are refused.
// Format: Python's Lib/pickletools.py, protocols 2 to 5.
#pragma once

#include <cstdint>
#include <deque>
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
    kObject,      ///< text: "module.name" of what was called, items: its arguments
    kPersistent,  ///< items: the identifier of what is stored elsewhere
  };
  Kind kind = Kind::kNone;
  int64_t integer = 0;  ///< and 0 or 1 of a bool
  std::string text;
  std::vector<const PickleValue*> items;
  PickleValue* state = nullptr;  ///< of an object; null without

  bool is(Kind other) const { return kind == other; }
  bool is_object(std::string_view name) const { return kind == Kind::kObject && text == name; }
  /// The value of a text key: of a dictionary, or of the dictionary that is an object's state; null if absent.
  const PickleValue* find(std::string_view key) const;
};

/// The values of one pickle. They may refer to each other in circles, so readers go no deeper than they expect to.
class Pickle {
 public:
  /// `allowed` has the full names of classes and functions. UserError with `where`: a name that is not allowed, an
  /// instruction that is not read, bytes that are cut off.
  static Pickle parse(std::string_view bytes, const std::set<std::string>& allowed, const std::string& where);

  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleReader;
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace hone
