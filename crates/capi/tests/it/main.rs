//! `libnacre.so` as programs use it: in C and C++, and in many processes started by `mpirun`.

#[path = "../../../client/tests/it/cluster/mod.rs"]
mod cluster;

mod c;
mod mpi;
mod site;
