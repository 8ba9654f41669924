//! The parameters of the MGS, `mgs.MGS.*`.

use std::sync::Arc;

use params::{Group, Param, Registry};

use crate::Mgs;

/// Registers the parameters. Dropping the returned group removes them.
pub(crate) fn register(mgs: &Arc<Mgs>, registry: &Registry) -> Group {
    let mut group = registry.group("mgs.MGS");
    let read = |show: fn(&Mgs) -> String| {
        let mgs = Arc::downgrade(mgs);
        move || mgs.upgrade().map(|mgs| show(&mgs)).unwrap_or_default()
    };
    let (mgs_to_set, mgs_to_rotate) = (Arc::downgrade(mgs), Arc::downgrade(mgs));
    group
        .add(
            "capa_keys",
            Param::read_write(read(Mgs::capa_key_ids), move |text| match (text.trim(), mgs_to_rotate.upgrade()) {
                ("new", mgs) => {
                    mgs.iter().for_each(Mgs::rotate_capa_keys);
                    Ok(())
                }
                (other, _) => Err(format!("expected `new`, to create a new key, found '{other}'")),
            })
            .about(
                "ids of the keys that sign object capabilities, the current one first; writing `new` creates a key, and the \
                 previous one stays valid until the next",
            ),
        )
        .add(
            "filesystems",
            Param::read_only(read(|mgs| mgs.filesystems().join("\n")))
                .about("file systems with a configuration on this MGS"),
        )
        .add(
            "live.params",
            Param::read_only(read(Mgs::permanent_params))
                .about("the parameters stored for all nodes by `set_param -P`, a line NAME=VALUE for each"),
        )
        .add(
            "server_nids",
            Param::read_write(read(Mgs::server_nids), move |text| match mgs_to_set.upgrade() {
                Some(mgs) => mgs.set_server_nids(text).map_err(|e| e.to_string()),
                None => Ok(()),
            })
            .about(
                "nodes besides this host that may register targets without a join token: NIDs and ranges such as \
                 `10.0.0.[1-9]@tcp`, or `NONE`; permanent",
            ),
        );
    group
}
