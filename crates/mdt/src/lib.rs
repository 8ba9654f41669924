//! The metadata target: names, attributes, layouts, FID sequences and their location.
//!
//! [`Mdt`] is the target: it serves clients ([`rpc::Target`]) from a [`store`] over an [`osd::Index`]. A request comes in
//! through `target::dispatch`; intents and modifying operations take locks (`locks`), do one operation of the
//! [`namespace`] in one transaction, and answer; nothing of that waits for the disk. Objects of new files come from the
//! OSTs' pools (`osp`, `lod`), objects of removed files go once the removal is on disk.

mod acl;
mod body;
mod capa;
pub mod check;
mod connect;
pub mod cred;
mod dirpage;
mod error;
mod fid2path;
mod getattr;
mod handles;
mod hsm;
mod intent;
pub mod layout;
mod locks;
mod lod;
pub mod namespace;
mod osp;
mod owners;
mod params_of;
mod reint;
mod rmfid;
mod sequences;
mod squash;
mod stats;
pub mod store;
mod target;

pub use error::MdtError;
pub use target::{Mdt, MdtConfig, WallClock};
