// Calls that unpack lists and dicts, and macros that take them.
#include <gtest/gtest.h>

#include "core/error.h"
#include "text/jinja/template.h"

namespace hone::jinja {
namespace {

std::string render(const std::string& source) { return Template(source, "t").render({}).text(); }

std::string error_of(const std::string& source) {
  try {
    return "no error: " + render(source);
  } catch (const UserError& error) {
    return error.message();
  }
}

const std::string kMacro = "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}";

TEST(JinjaCalls, UnpackDictsAndLists) {
  EXPECT_EQ(render(kMacro + "{% set d = {'a': 1, 'b': 5} %}{{ f(**d) }}"), "1-5");
  EXPECT_EQ(render(kMacro + "{{ f(1, **{'b': 3}) }} {{ f(*[7, 8]) }} {{ f(*[7], b=9) }} {{ f(*(4,), **{}) }}"),
            "1-3 7-8 7-9 4-2");
  EXPECT_EQ(render("{{ dict(**{'x': 1}).x }}"), "1");
  EXPECT_EQ(render("{{ 'a b c' | replace(*['a', 'x']) }}"), "x b c");
}

TEST(JinjaCalls, MacrosTakeTheRestAsVarargsAndKwargs) {
  EXPECT_EQ(render("{% macro f(a) %}{{ a }}{% for k, v in kwargs.items() %} {{ k }}={{ v }}{% endfor %}{% endmacro %}"
                   "{{ f(1, x=2, y='z') }}"),
            "1 x=2 y=z");
  EXPECT_EQ(render("{% macro f(a) %}{{ a }}{{ varargs | length }}{% endmacro %}{{ f(1, 2, 3) }}"), "12");
  EXPECT_EQ(render("{% macro g(n) %}<{{ n }}>{% endmacro %}{% macro f() %}{{ g(**kwargs) }}{% endmacro %}{{ f(n=4) }}"),
            "<4>");
}

TEST(JinjaCalls, WhatPythonRefusesIsRefused) {
  EXPECT_EQ(error_of(kMacro + "{{ f(1, x=2) }}"), "chat template: the macro 'f' has no parameter 'x'");
  EXPECT_EQ(error_of(kMacro + "{{ f(a=1, **{'a': 2}) }}"), "chat template: the argument 'a' is given twice");
  EXPECT_EQ(error_of(kMacro + "{{ f(**5) }}"), "chat template: the argument after ** is a 'int', not a dict");
  EXPECT_EQ(error_of(kMacro + "{{ f(**{1: 2}) }}"), "chat template: keys of the dict after ** are not all strings");
  EXPECT_EQ(error_of(kMacro + "{{ f(**{}, 1) }}"), "chat template: an argument follows **, which is the last one");
  EXPECT_EQ(error_of(kMacro + "{{ f(*[1], *[2]) }}"),
            "chat template: a call unpacks one list with * and then one dict with **");
}

}  // namespace
}  // namespace hone::jinja
