//! A mount: name space, layouts, locks, page cache and I/O engine, as an async library.

mod attr;
mod cred;
mod fidgen;
mod fld;
mod inode;
mod kernel;
mod layout;
mod pack;
