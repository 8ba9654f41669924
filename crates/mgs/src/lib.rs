//! The management server: configuration logs and target registration.

mod fsdb;
mod logs;
mod sections;

/// Why the MGS cannot do something.
#[derive(Debug, thiserror::Error)]
pub enum MgsError {
    /// What the store holds is not what this server wrote.
    #[error("the store of the MGS is damaged: {what}")]
    Store {
        /// What is wrong with it.
        what: String,
    },
    /// The store failed.
    #[error("the store of the MGS: {0}")]
    Osd(#[from] osd::OsdError),
    /// A log cannot take a change.
    #[error("log '{name}': {why}")]
    Log {
        /// The log.
        name: String,
        /// Why not.
        why: String,
    },
    /// A registration that cannot be granted.
    #[error("registration of {svname} refused: {why}")]
    Refused {
        /// The target that asked.
        svname: String,
        /// Why not.
        why: String,
        /// What it is told.
        errno: wire::Errno,
    },
}
