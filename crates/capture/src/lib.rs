//! Captures of Lustre traffic, for `nacre decode` and for tests that replay captured messages.
//!
//! [`pcap`] reads the TCP segments of a file, [`flow`] reassembles them into socklnd's items,
//! [`trace`] finds the request of each reply and of bulk data, and [`decode`] prints the messages.
//! A capture is untrusted: it may begin and end anywhere and lack packets.

pub mod decode;
pub mod flow;
pub mod pcap;
pub mod trace;
