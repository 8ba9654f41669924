//! `nacre lctl nodemap_*`: changes of nodemaps, with the names of Lustre's commands.

use clap::Subcommand;
use mgc::NodemapTable;
use serde::{Deserialize, Serialize};

/// A change of the nodemap table.
#[derive(Debug, Clone, Subcommand, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub(crate) enum NodemapChange {
    /// Add a nodemap; it has no clients yet, and all its users are squashed
    #[command(name = "nodemap_add")]
    Add {
        /// Name, at most 16 characters
        name: String,
    },
    /// Remove a nodemap; its clients move to the nodemap "default"
    #[command(name = "nodemap_del")]
    Del {
        /// Name
        name: String,
    },
    /// Add clients to a nodemap
    #[command(name = "nodemap_add_range")]
    AddRange {
        /// The nodemap
        #[arg(long)]
        name: String,
        /// NIDs, such as "10.0.0.[1-9]@tcp"
        #[arg(long)]
        range: String,
    },
    /// Remove clients from a nodemap
    #[command(name = "nodemap_del_range")]
    DelRange {
        /// The nodemap
        #[arg(long)]
        name: String,
        /// The range, exactly as given to `nodemap_add_range`
        #[arg(long)]
        range: String,
    },
    /// Change the rights of a nodemap's clients
    #[command(name = "nodemap_modify")]
    Modify {
        /// The nodemap; "default" applies to clients in no other nodemap
        #[arg(long)]
        name: String,
        /// admin, trusted, squash_uid, squash_gid, readonly_mount, deny_mount or capabilities
        #[arg(long)]
        property: String,
        /// 0 or 1, or a numeric user or group ID
        #[arg(long)]
        value: String,
    },
}

impl NodemapChange {
    /// Applies the change to a table.
    pub(crate) fn apply(&self, table: &mut NodemapTable) -> Result<(), String> {
        match self {
            NodemapChange::Add { name } => table.add(name),
            NodemapChange::Del { name } => table.remove(name),
            NodemapChange::AddRange { name, range } => table.add_range(name, range),
            NodemapChange::DelRange { name, range } => table.remove_range(name, range),
            NodemapChange::Modify {
                name,
                property,
                value,
            } => table.modify(name, property, value),
        }
    }
}
