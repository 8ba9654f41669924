//! Tests of `libnacre.so` with C, C++ and MPI programs.

#[path = "../../../client/tests/it/cluster/mod.rs"]
mod cluster;

mod c;
mod mpi;
mod site;
