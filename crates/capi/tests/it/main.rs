//! Tests of `libnacre.so` with C, C++ and MPI programs.

mod c;
mod mpi;
mod site;
