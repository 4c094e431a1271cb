#include "weights/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"

namespace hone {

const PickleValue* PickleValue::find(std::string_view key) const {
  const PickleValue* dictionary = kind == Kind::kObject ? state : this;
  if (dictionary == nullptr || !dictionary->is(Kind::kDictionary)) return nullptr;
  constexpr size_t kMostFields = 64;
  for (size_t i = 0; i + 1 < std::min(dictionary->items.size(), 2 * kMostFields); i += 2) {
    if (dictionary->items[i]->is(Kind::kText) && dictionary->items[i]->text == key) return dictionary->items[i + 1];
  }
  return nullptr;
}

/// The stack machine. Each instruction creates at most one value, and none copies one.
class PickleReader {
 public:
  using Kind = PickleValue::Kind;

  PickleReader(std::string_view bytes, const std::set<std::string>& allowed, std::string where)
      : bytes_(bytes), allowed_(allowed), where_(std::move(where)) {}

  Pickle run() {
    while (true) {
      const auto code = static_cast<uint8_t>(take(1)[0]);
      if (code == '.') break;
      step(code);
    }
    if (stack_.size() != 1 || !marks_.empty()) broken("the result is not one value");
    pickle_.root_ = stack_.back();
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void broken(const std::string& what) const {
    throw UserError("broken pickle: " + what, where_, "the file is damaged, or is not what its name says");
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) broken(fmt::format("it is cut off at byte {}", bytes_.size()));
    const std::string_view piece = bytes_.substr(at_, count);
    at_ += count;
    return piece;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string line() {
    const size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) broken("a name is cut off");
    std::string text(bytes_.substr(at_, end - at_));
    at_ = end + 1;
    return text;
  }

  /// Checks the limit before memory is allocated.
  void take_memory(uint64_t bytes) {
    memory_ += bytes;
    if (memory_ > Pickle::kMostMemory + 10 * bytes_.size()) broken("it makes more values than a file of its size has");
  }

  PickleValue& make(Kind kind) {
    take_memory(sizeof(PickleValue));
    pickle_.values_.emplace_back().kind = kind;
    return pickle_.values_.back();
  }
  void push(PickleValue& value) {
    constexpr size_t kDeepest = size_t{1} << 24;
    if (stack_.size() == kDeepest) broken("it stacks more values than any checkpoint");
    stack_.push_back(&value);
  }
  /// Immutable values are shared: most values of a checkpoint's metadata are small numbers.
  PickleValue& shared(Kind kind, int64_t integer) {
    PickleValue*& value = shared_[{kind, integer}];
    if (value == nullptr) {
      value = &make(kind);
      value->integer = integer;
    }
    return *value;
  }
  void push_integer(int64_t integer, Kind kind = Kind::kInteger) {
    constexpr int64_t kSmall = 65536;
    if (integer >= 0 && integer < kSmall) return push(shared(kind, integer));
    PickleValue& value = make(kind);
    value.integer = integer;
    push(value);
  }
  void push_text(std::string_view text, Kind kind = Kind::kText) {
    PickleValue& value = make(kind);
    value.text = text;
    push(value);
  }

  /// Start of the current mark's stack: only the instruction that consumes the mark may pop below it.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleValue* pop() {
    if (stack_.size() <= floor()) broken("an instruction lacks its operands");
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    if (stack_.size() <= floor()) broken("an instruction lacks its operands");
    return *stack_.back();
  }
  void push_mark() {
    constexpr size_t kDeepest = 1 << 16;
    if (marks_.size() == kDeepest) broken("it has more marks than any checkpoint");
    marks_.push_back(stack_.size());
  }
  std::vector<const PickleValue*> pop_mark() {
    if (marks_.empty()) broken("an instruction lacks its mark");
    const size_t begin = marks_.back();
    marks_.pop_back();
    take_memory((stack_.size() - begin) * sizeof(void*));
    std::vector<const PickleValue*> items(stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
    stack_.resize(begin);
    return items;
  }
  void push_items(Kind kind, std::vector<const PickleValue*> items) {
    if (kind == Kind::kDictionary && items.size() % 2 != 0) broken("a dictionary has a key without a value");
    PickleValue& value = make(kind);
    value.items = std::move(items);
    push(value);
  }
  void push_tuple(size_t count) {
    take_memory(count * sizeof(void*));
    std::vector<const PickleValue*> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_items(Kind::kTuple, std::move(items));
  }
  void append(Kind kind, const std::vector<const PickleValue*>& items) {
    PickleValue& to = top();
    // A dictionary created by a call (OrderedDict()) stores items in its state.
    const bool called = kind == Kind::kDictionary && to.is(Kind::kObject);
    if (called && to.state == nullptr) to.state = &make(Kind::kDictionary);
    PickleValue& container = called ? *to.state : to;
    if (!container.is(kind)) broken("items are added to what takes none");
    take_memory(items.size() * sizeof(void*));
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  void push_global(const std::string& module, const std::string& name) {
    const std::string full = module + "." + name;
    if (!allowed_.contains(full)) {
      throw UserError(fmt::format("the file calls '{}', which checkpoints do not use: it was not executed", full),
                      where_, "do not load this file with Python either, unless you know who made it and why");
    }
    push_text(*pickle_.names_.insert(full).first, Kind::kGlobal);
  }
  void call() {
    const PickleValue* arguments = pop();
    const PickleValue* callee = pop();
    if (!callee->is(Kind::kGlobal) || !arguments->is(Kind::kTuple))
      broken("a call of something that is not a class or function");
    PickleValue& object = make(Kind::kObject);
    object.text = callee->text;
    object.arguments = arguments;
    push(object);
  }
  void build() {
    PickleValue* state = pop();
    if (!top().is(Kind::kObject)) broken("state of something that is not an object");
    top().state = state;
  }

  void remember(uint64_t place) {
    constexpr uint64_t kEntry = 64;  // bytes of a hash table's entry
    if (memo_.insert_or_assign(place, &top()).second) take_memory(kEntry);
  }
  void recall(uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) broken("it recalls what it has not remembered");
    push(*found->second);
  }
  void push_long(uint64_t bytes) {
    const std::string_view digits = take(bytes);
    if (bytes > 8) broken("a number is larger than any size");
    uint64_t value = bytes > 0 && static_cast<int8_t>(digits.back()) < 0 ? ~uint64_t{0} : 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(digits[i]);
    push_integer(static_cast<int64_t>(value));
  }
  /// Floats only need to be skipped: no value that is read from a checkpoint is one.
  void push_float() {
    take(8);
    push(shared(Kind::kFloat, 0));
  }

  void step(uint8_t code);
  bool step_value(uint8_t code);
  bool step_container(uint8_t code);

  std::string_view bytes_;
  const std::set<std::string>& allowed_;
  std::string where_;
  size_t at_ = 0;
  Pickle pickle_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
  std::map<std::pair<Kind, int64_t>, PickleValue*> shared_;
  uint64_t memory_ = 0;
};

/// Executes instructions for numbers, texts and constants.
bool PickleReader::step_value(uint8_t code) {
  switch (code) {
    case 'N':
      return push(shared(Kind::kNone, 0)), true;
    case 0x88:
    case 0x89:
      return push_integer(code == 0x88, Kind::kBool), true;
    case 'J':
      return push_integer(number<int32_t>()), true;
    case 'K':
      return push_integer(number<uint8_t>()), true;
    case 'M':
      return push_integer(number<uint16_t>()), true;
    case 0x8a:
      return push_long(number<uint8_t>()), true;
    case 0x8b:
      return push_long(number<uint32_t>()), true;
    case 'G':
      return push_float(), true;
    case 'X':
      return push_text(take(number<uint32_t>())), true;
    case 0x8c:
      return push_text(take(number<uint8_t>())), true;
    case 0x8d:
      return push_text(take(number<uint64_t>())), true;
    case 'T':
      return push_text(take(number<uint32_t>())), true;
    case 'U':
      return push_text(take(number<uint8_t>())), true;
    case 'B':
      return push_text(take(number<uint32_t>()), Kind::kBytes), true;
    case 'C':
      return push_text(take(number<uint8_t>()), Kind::kBytes), true;
    default:
      return false;
  }
}

/// Executes instructions for tuples, lists, dictionaries and sets.
bool PickleReader::step_container(uint8_t code) {
  switch (code) {
    case '(':
      return push_mark(), true;
    case ')':
      return push(shared(Kind::kTuple, 0)), true;
    case 't':
      return push_items(Kind::kTuple, pop_mark()), true;
    case 0x85:
    case 0x86:
    case 0x87:
      return push_tuple(code - 0x84u), true;
    case ']':
    case 0x8f:
      return push_items(Kind::kList, {}), true;
    case 'l':
    case 0x91:
      return push_items(Kind::kList, pop_mark()), true;
    case 'a':
      return append(Kind::kList, {pop()}), true;
    case 'e':
    case 0x90:
      return append(Kind::kList, pop_mark()), true;
    case '}':
      return push_items(Kind::kDictionary, {}), true;
    case 'd':
      return push_items(Kind::kDictionary, pop_mark()), true;
    case 's': {
      const PickleValue* value = pop();
      const PickleValue* key = pop();
      return append(Kind::kDictionary, {key, value}), true;
    }
    case 'u': {
      const std::vector<const PickleValue*> items = pop_mark();
      if (items.size() % 2 != 0) broken("a dictionary has a key without a value");
      return append(Kind::kDictionary, items), true;
    }
    default:
      return false;
  }
}

void PickleReader::step(uint8_t code) {
  if (step_value(code) || step_container(code)) return;
  switch (code) {
    case 0x80:
      if (number<uint8_t>() > 5) broken("its protocol is newer than 5");
      return;
    case 0x95:  // a frame of the writer; ignored
      number<uint64_t>();
      return;
    case '0':
      pop();
      return;
    case '1':
      pop_mark();
      return;
    case '2':
      return push(top());
    case 'c': {
      const std::string module = line();
      return push_global(module, line());
    }
    case 0x93: {
      const PickleValue* name = pop();
      const PickleValue* module = pop();
      if (!name->is(Kind::kText) || !module->is(Kind::kText)) broken("a class without a name");
      return push_global(std::string(module->text), std::string(name->text));
    }
    case 'R':
    case 0x81:
      return call();
    case 'b':
      return build();
    case 'q':
      return remember(number<uint8_t>());
    case 'r':
      return remember(number<uint32_t>());
    case 0x94:
      return remember(memo_.size());
    case 'h':
      return recall(number<uint8_t>());
    case 'j':
      return recall(number<uint32_t>());
    case 'Q':
      return push_items(Kind::kPersistent, {pop()});
    default:
      broken(fmt::format("instruction 0x{:02x} at byte {}, which no checkpoint has", code, at_ - 1));
  }
}

Pickle Pickle::parse(std::string bytes, const std::set<std::string>& allowed, const std::string& where) {
  auto kept = std::make_unique<const std::string>(std::move(bytes));
  Pickle pickle = PickleReader(*kept, allowed, where).run();
  pickle.bytes_ = std::move(kept);
  return pickle;
}

}  // namespace hone
