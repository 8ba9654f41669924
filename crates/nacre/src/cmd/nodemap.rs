//! `nacre lctl nodemap_*`: changes of the nodemaps, under Lustre's names.

use clap::Subcommand;
use mgc::NodemapTable;
use serde::{Deserialize, Serialize};

/// One change.
#[derive(Debug, Clone, Subcommand, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub(crate) enum Change {
    /// Add a nodemap; it has no clients yet, and all its users are squashed
    #[command(name = "nodemap_add")]
    Add {
        /// Its name, at most 16 characters
        name: String,
    },
    /// Remove a nodemap; its clients are in the nodemap "default" from then on
    #[command(name = "nodemap_del")]
    Del {
        /// Its name
        name: String,
    },
    /// Add clients to a nodemap
    #[command(name = "nodemap_add_range")]
    AddRange {
        /// The nodemap
        #[arg(long)]
        name: String,
        /// Their NIDs, such as "10.0.0.[1-9]@tcp"
        #[arg(long)]
        range: String,
    },
    /// Remove clients from a nodemap
    #[command(name = "nodemap_del_range")]
    DelRange {
        /// The nodemap
        #[arg(long)]
        name: String,
        /// A range, written as `nodemap_add_range` was given it
        #[arg(long)]
        range: String,
    },
    /// Change what the clients of a nodemap may do
    #[command(name = "nodemap_modify")]
    Modify {
        /// The nodemap; "default" is for clients that are in no other
        #[arg(long)]
        name: String,
        /// admin, trusted, squash_uid, squash_gid, readonly_mount or deny_mount
        #[arg(long)]
        property: String,
        /// 0 or 1, or the number of a user or group
        #[arg(long)]
        value: String,
    },
}

impl Change {
    /// Makes the change.
    pub(crate) fn apply(&self, table: &mut NodemapTable) -> Result<(), String> {
        match self {
            Change::Add { name } => table.add(name),
            Change::Del { name } => table.remove(name),
            Change::AddRange { name, range } => table.add_range(name, range),
            Change::DelRange { name, range } => table.remove_range(name, range),
            Change::Modify {
                name,
                property,
                value,
            } => table.modify(name, property, value),
        }
    }
}
