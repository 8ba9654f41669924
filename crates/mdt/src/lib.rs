//! The metadata target: names, attributes, layouts, FID sequences and their location.

mod acl;
pub mod cred;
pub mod layout;
pub mod namespace;
pub mod store;
