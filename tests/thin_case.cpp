// Thins a reference case for the source repository (src/app/verify/thinned_case.h).
#include <iostream>

#include "app/verify/thinned_case.h"

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: hone_thin_case CASE THINNED_CASE\n";
    return 2;
  }
  hone::thin_case(argv[1], argv[2]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 2;
}
