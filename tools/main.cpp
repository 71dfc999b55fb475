// The program `cistern`; everything is in cli.cpp and the commands beside it.
#include "cli.hpp"

int main(int argc, char** argv) { return cistern::tools::run(argc, argv); }
