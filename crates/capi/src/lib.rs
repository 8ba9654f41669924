//! `libnacre.so`: a mounted file system for C programs, without a kernel between. What its functions do is said where their
//! users read it, in `include/nacre.h`; they stand in [`exports`], in the same order.
//!
//! A call comes in through [`border`], which makes bytes and values of what C passes and an errno of what goes wrong. It
//! then runs on the caller's own thread as far as it can without waiting, the rest on the mount's runtime ([`mount`]).
//! What C holds of a mount and of what is open in it are numbers, not addresses ([`mount`], [`table`]): one that is used
//! after its end is an error, never a crash.

mod attrs;
mod border;
mod dirs;
mod exports;
mod files;
mod mount;
mod names;
mod options;
mod stripes;
mod table;
