//! The stores of a simulated server, which may lose data in a crash.
//!
//! A [`SimDisk`] survives the restarts of its node. It has two images. Readers see the visible one;
//! the one on disk has only changes that a commit or sync made durable. A power cut keeps the image
//! on disk and a random part of the other changes. The index is a double of
//! [`osd::LocalIndex`]. The objects are [`osd::LocalObjects`] itself on a simulated file system, so
//! that a simulation tests its rules (`docs/on-disk-format.md`, "Durability").
//!
//! All waits use virtual time, and all choices use the disk's own random numbers. So the same calls
//! in the same order give the same result.

mod disk;
mod file_system;
mod files;
mod index;
mod journal;

pub use disk::{DiskConfig, SimDisk, SimStores};
