//! A router's buffers: the number of messages that it may hold, by size of payload and per
//! partition. A message gets its buffer before the router reads its payload. Without a free buffer
//! the router stops reading the connection, so the sender has to wait.

use crate::LnetConfig;
use crate::credits::{Credit, Credits};
use arc_swap::ArcSwap;
use cpt::CptId;
use std::sync::Arc;

/// The largest payload of a small buffer in bytes: one page.
pub(crate) const SMALL_MAX: usize = 4096;
/// Pages of each tiny, small and large buffer.
const PAGES: [u32; 3] = [0, 1, 256];
/// Default numbers of tiny, small and large buffers: over all partitions, and the minimum per
/// partition.
const DEFAULTS: [(u32, u32); 3] = [(2048, 512), (16384, 4096), (1024, 256)];

/// The buffers of one partition: tiny, small and large.
type Pools = [Arc<Credits>; 3];

/// All buffers.
#[derive(Debug)]
pub(crate) struct Buffers {
    current: ArcSwap<Table>,
}

#[derive(Debug)]
struct Table {
    /// Indexed by partition.
    pools: Vec<Pools>,
    /// The configured numbers of tiny, small and large buffers over all partitions; 0: the default.
    configured: [u32; 3],
}

/// The buffers of one size on one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterBufferInfo {
    /// The partition.
    pub cpt: usize,
    /// Pages per buffer: 0, 1 or 256.
    pub pages: u32,
    /// Number of buffers.
    pub count: u32,
    /// Free buffers; the negative number of waiting messages if there are none.
    pub left: i64,
    /// The minimum of `left` so far.
    pub left_min: i64,
}

impl Buffers {
    pub(crate) fn new(cpts: usize, cfg: &LnetConfig) -> Buffers {
        let configured = [
            cfg.tiny_router_buffers,
            cfg.small_router_buffers,
            cfg.large_router_buffers,
        ];
        Buffers {
            current: ArcSwap::from_pointee(Table::new(cpts, configured)),
        }
    }

    /// Replaces the pools. Messages being forwarded keep their buffers, which the new pools do not
    /// count.
    pub(crate) fn resize(&self, configured: [u32; 3]) {
        let cpts = self.current.load().pools.len();
        self.current.store(Arc::new(Table::new(cpts, configured)));
    }

    /// The configured numbers over all partitions: tiny, small, large.
    pub(crate) fn configured(&self) -> [u32; 3] {
        self.current.load().configured
    }

    /// Takes a buffer of a partition for a payload of `len` bytes; waits until one is free. `None`
    /// if there is no such partition.
    pub(crate) async fn take(&self, cpt: CptId, len: usize) -> Option<Credit> {
        let size = match len {
            0 => 0,
            1..=SMALL_MAX => 1,
            _ => 2,
        };
        let pool = {
            let table = self.current.load();
            table.pools.get(cpt.0)?[size].clone()
        };
        Some(pool.take().await)
    }

    pub(crate) fn show(&self) -> Vec<RouterBufferInfo> {
        let table = self.current.load();
        let mut rows = Vec::new();
        for (size, pages) in PAGES.into_iter().enumerate() {
            for (cpt, cpt_pools) in table.pools.iter().enumerate() {
                let pool = &cpt_pools[size];
                rows.push(RouterBufferInfo {
                    cpt,
                    pages,
                    count: pool.max(),
                    left: pool.left(),
                    left_min: pool.left_min(),
                });
            }
        }
        rows
    }
}

impl Table {
    fn new(cpts: usize, configured: [u32; 3]) -> Table {
        let per_cpt = |size: usize| match (configured[size], DEFAULTS[size]) {
            (0, (all, cpt_min)) => (all / cpts as u32).max(cpt_min),
            (n, _) => n.div_ceil(cpts as u32),
        };
        let pools = (0..cpts).map(|_| [0, 1, 2].map(|size| Credits::new(per_cpt(size))));
        Table {
            pools: pools.collect(),
            configured,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Buffers;
    use crate::LnetConfig;
    use cpt::CptId;

    #[tokio::test]
    async fn buffers_are_split_over_partitions_and_can_be_resized() {
        let buffers = Buffers::new(
            2,
            &LnetConfig {
                large_router_buffers: 4,
                ..LnetConfig::default()
            },
        );
        let counts: Vec<_> = buffers.show().iter().map(|s| (s.cpt, s.pages, s.count)).collect();
        assert_eq!(
            counts,
            [
                (0, 0, 1024),
                (1, 0, 1024),
                (0, 1, 8192),
                (1, 1, 8192),
                (0, 256, 2),
                (1, 256, 2)
            ]
        );
        let _large = buffers.take(CptId(1), 4097).await.unwrap();
        let _small = buffers.take(CptId(1), 4096).await.unwrap();
        let left: Vec<_> = buffers.show().iter().map(|s| s.left).collect();
        assert_eq!(left, [1024, 1024, 8192, 8191, 2, 1]);
        buffers.resize([8, 8, 2]);
        assert_eq!(buffers.show()[5].left, 1);
    }
}
