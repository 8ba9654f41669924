//! Requests and replies between nodes: in one process, over TCP, and by hand.

mod by_hand;
mod exchange;
mod idle;
mod import_params;
mod inline_dispatch;
mod partitions;
mod recovery;
mod refusals;
mod target_stats;
mod tcp;
mod throttle;
