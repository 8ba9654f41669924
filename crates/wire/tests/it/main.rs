//! Structures and constants compared with the facts of Lustre's headers.

mod facts;
