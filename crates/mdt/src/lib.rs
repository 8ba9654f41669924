//! The metadata target (MDT): names, attributes, layouts, and FID sequences with their locations.
//!
//! [`Mdt`] serves clients ([`rpc::Target`]) from a [`store`] over an [`osd::Index`].
//! `target::dispatch` receives a request. Intents and modifying operations take locks (`locks`),
//! execute one operation of the [`namespace`] in one transaction, and reply without waiting for the
//! disk. New files get objects from the pools of the OSTs (`osp`, `lod`). The MDT destroys the
//! objects of a removed file once the removal is on disk.

mod acl;
mod body;
mod capa;
pub mod check;
mod connect;
pub mod cred;
mod data;
mod dir_layout;
mod dir_stats;
mod dirpage;
mod error;
mod fid2path;
mod file_layout;
mod getattr;
mod handles;
mod hsm;
mod intent;
pub mod layout;
mod locks;
mod lod;
pub mod namespace;
mod osp;
mod parameters;
mod peers;
mod reconstruct;
mod reint;
mod rmfid;
mod sequence_owners;
mod sequences;
mod squash;
mod stats;
pub mod store;
mod swap;
mod target;
mod updates;

pub use error::MdtError;
pub use target::{Mdt, MdtConfig, WallClock};
