#include "data/readers/parquet/value_form.h"

#include "data/readers/parquet/bytes.h"

namespace hone::parquet {

namespace {

constexpr int kMostDigits = 76;  // digits of a decimal: what 32 bytes hold

[[noreturn]] void refuse_type(const SchemaElement& element) {
  fault("the column '{}' has a type that its values cannot have (physical type {}, logical type {})", element.name,
        static_cast<int>(element.physical), static_cast<int>(element.logical.kind));
}

/// The forms of values without a logical type, or with one that is not known.
ValueForm plain_form(Physical physical) {
  switch (physical) {
    case Physical::kBoolean:
      return ValueForm::kBoolean;
    case Physical::kInt32:
    case Physical::kInt64:
      return ValueForm::kSigned;
    case Physical::kInt96:
      return ValueForm::kInt96;
    case Physical::kFloat:
      return ValueForm::kFloat;
    case Physical::kDouble:
      return ValueForm::kDouble;
    case Physical::kByteArray:
    case Physical::kFixedBytes:
      break;
  }
  return ValueForm::kNothing;
}

void set_integer(const SchemaElement& element, Leaf& leaf) {
  const int bits = element.logical.bits;
  const bool narrow = bits == 8 || bits == 16 || bits == 32;
  if (element.physical == Physical::kInt32 ? !narrow : element.physical != Physical::kInt64 || bits != 64) {
    refuse_type(element);
  }
  leaf.bits = bits;
  leaf.form = element.logical.is_signed ? ValueForm::kSigned : ValueForm::kUnsigned;
}

void set_decimal(const SchemaElement& element, Leaf& leaf) {
  const auto [scale, precision] = std::pair(element.logical.scale, element.logical.precision);
  const bool holds = element.physical == Physical::kInt32 || element.physical == Physical::kInt64 ||
                     element.physical == Physical::kByteArray || element.physical == Physical::kFixedBytes;
  if (!holds) refuse_type(element);
  if (precision < 1 || precision > kMostDigits || scale < 0 || scale > precision) {
    fault("the column '{}' has decimals of {} digits, {} of them after the point", element.name, precision, scale);
  }
  leaf.scale = scale;
  leaf.form = ValueForm::kDecimal;
}

void set_time(const SchemaElement& element, Leaf& leaf) {
  const bool milli = element.logical.unit == TimeUnit::kMilli;
  if (element.physical != (milli ? Physical::kInt32 : Physical::kInt64)) refuse_type(element);
  leaf.form = ValueForm::kTime;
}

}  // namespace

void set_value_form(const SchemaElement& element, Leaf& leaf) {
  const auto require = [&](bool holds) {
    if (!holds) refuse_type(element);
  };
  const Physical physical = element.physical;
  leaf.form = plain_form(physical);
  leaf.bits = physical == Physical::kInt32 ? 32 : 64;
  leaf.unit = element.logical.unit;
  leaf.utc = element.logical.utc;
  switch (element.logical.kind) {
    case Logical::kString:
    case Logical::kJson:
      require(physical == Physical::kByteArray);
      leaf.form = ValueForm::kText;
      break;
    case Logical::kInteger:
      set_integer(element, leaf);
      break;
    case Logical::kDecimal:
      set_decimal(element, leaf);
      break;
    case Logical::kDate:
      require(physical == Physical::kInt32);
      leaf.form = ValueForm::kDate;
      break;
    case Logical::kTime:
      set_time(element, leaf);
      break;
    case Logical::kTimestamp:
      require(physical == Physical::kInt64);
      leaf.form = ValueForm::kTimestamp;
      break;
    case Logical::kFloat16:
      require(physical == Physical::kFixedBytes && element.length == 2);
      leaf.form = ValueForm::kHalf;
      break;
    case Logical::kUnknown:
      leaf.form = ValueForm::kNothing;
      break;
    case Logical::kEnum:
    case Logical::kBson:
      require(physical == Physical::kByteArray);
      break;
    case Logical::kUuid:
    case Logical::kInterval:
      require(physical == Physical::kFixedBytes);
      break;
    case Logical::kMap:
    case Logical::kList:
      require(false);
      break;
    case Logical::kNone:
    case Logical::kVariant:
    case Logical::kGeometry:
    case Logical::kGeography:
      break;
  }
}

}  // namespace hone::parquet
