//! Tests of a mount against servers in the same process: in memory, on loopback, or simulated from
//! captures.

mod by_fid;
mod capabilities;
mod captured_clients;
mod captured_servers;
mod components;
mod connect_flags;
mod crashes;
mod data;
mod data_on_mdt;
mod data_with_open;
mod evictions;
mod layouts;
mod linear;
mod listings;
mod locks;
mod namespace;
mod new_dirs;
mod new_targets;
mod precreation;
mod retained_locks;
mod routers;
mod swapped_layouts;
mod times;
mod unsent_times;
mod versions;
