//! The run-time parameters of a node's LNet.

use crate::Lnet;
use params::{Param, ParamGuard, Registry};
use std::sync::{Arc, Weak};

impl Lnet {
    /// Registers the parameters under Lustre's names until the returned guards are dropped.
    pub fn register_params(self: &Arc<Self>, registry: &Registry) -> Vec<ParamGuard> {
        let table = |format: fn(&Lnet) -> String| {
            let lnet: Weak<Lnet> = Arc::downgrade(self);
            Param::read_only(move || lnet.upgrade().map(|lnet| format(&lnet)).unwrap_or_default())
        };
        let (reader, writer) = (Arc::downgrade(self), Arc::downgrade(self));
        let rotor = Param::read_write(
            move || reader.upgrade().map(|lnet| lnet.rotor_text()).unwrap_or_default(),
            move |text| {
                let mode = text.trim().parse()?;
                if let Some(lnet) = writer.upgrade() {
                    lnet.set_portal_rotor(mode);
                }
                Ok(())
            },
        );
        let about = "distribution of requests over partitions: OFF, ON, RR_RT or HASH_RT";
        let all = [
            (
                "nis",
                table(Lnet::nis_table)
                    .about("the interfaces of this node, and their credits on each partition"),
            ),
            (
                "peers",
                table(Lnet::peers_table).about("the peers of this node, and their credits"),
            ),
            (
                "routes",
                table(Lnet::routes_table)
                    .about("the routes to other networks, and whether this node is a router"),
            ),
            (
                "routers",
                table(Lnet::routers_table).about("the routers that this node uses"),
            ),
            (
                "buffers",
                table(Lnet::buffers_table).about("a router's buffers on each partition: tiny, small, large"),
            ),
            (
                "stats",
                table(Lnet::stats_line).about(
                    "messages in progress, maximum so far, errors; sent, received, routed, dropped; their bytes",
                ),
            ),
            ("portal_rotor", rotor.about(about)),
        ];
        all.into_iter()
            .map(|(name, param)| registry.register(name, param))
            .collect()
    }
}
