//! The tables of the targets' current NIDs ([`mgc::nid_table`]), one per file system. They are in
//! memory: after a restart of the MGS a table has the targets that have started since then.

use std::collections::BTreeMap;

use mgc::{NidTable, TargetLocation, nid_table::encode};
use wire::{Errno, LDD_F_SV_TYPE_MDT, MgsConfigBody, MgsConfigRes, MgsTargetInfo};

/// Largest reply to one read, bytes.
const READ_MAX: usize = 1 << 20;
/// Largest unit, bytes: a page of Lustre's clients.
const UNIT_MAX: usize = 4096;
/// Smallest unit, bytes.
const UNIT_MIN: usize = 64;

/// The tables by the name of the file system.
#[derive(Debug, Default)]
pub(crate) struct NidTables(BTreeMap<String, NidTable>);

impl NidTables {
    /// Records that a target is ready. Returns false if the table says so already. `now`: seconds
    /// since 1970.
    pub(crate) fn set(&mut self, info: &MgsTargetInfo, now: i64) -> bool {
        let nids = info.mti_nids.iter().take(info.mti_nid_count as usize);
        let table = self.0.entry(info.mti_fsname.to_string()).or_default();
        // Versions grow, also after a restart of the MGS: clients ask for versions after the last
        // one that they know.
        let last = table.0.last().map_or(0, |location| location.version);
        let location = TargetLocation {
            version: last.saturating_add(1).max(now.max(1) as u64),
            is_mdt: info.mti_flags & LDD_F_SV_TYPE_MDT != 0,
            index: info.mti_stripe_index,
            instance: info.mti_instance,
            nids: nids.copied().collect(),
        };
        let same = |old: &TargetLocation| (old.is_mdt, old.index) == (location.is_mdt, location.index);
        let known = table.0.iter().find(|old| same(old));
        if known.is_some_and(|old| (old.instance, &old.nids) == (location.instance, &location.nids)) {
            return false;
        }
        table.0.retain(|old| !same(old));
        table.0.push(location);
        true
    }

    /// The answer to a read: the result, and the entries for the bulk.
    pub(crate) fn read(&self, fsname: &str, body: &MgsConfigBody) -> Result<(MgsConfigRes, Vec<u8>), Errno> {
        let unit = 1usize
            .checked_shl(body.mcb_bits.into())
            .unwrap_or(0)
            .min(UNIT_MAX);
        let units = (body.mcb_units as usize).min(READ_MAX / UNIT_MAX);
        if unit < UNIT_MIN || units == 0 {
            return Err(Errno::EINVAL);
        }
        let empty = NidTable::default();
        let locations = &self.0.get(fsname).unwrap_or(&empty).0;
        let newest = locations.last().map_or(0, |location| location.version);
        let first = locations.partition_point(|location| location.version < body.mcb_offset);
        let (pages, count) = encode(&locations[first..], unit, units, body.mcb_rec_nid_size != 0);
        let offset = match first + count == locations.len() {
            true => newest,
            // A location that does not fit into a unit.
            false if count == 0 => return Err(Errno::EOVERFLOW),
            false => locations[first + count - 1].version,
        };
        let result = MgsConfigRes {
            mcr_offset: offset,
            mcr_size: newest,
        };
        Ok((result, pages))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use mgc::nid_table::decode;
    use wire::{LDD_F_SV_TYPE_OST, Text};

    fn info(index: u32, instance: u32) -> MgsTargetInfo {
        let mut info = MgsTargetInfo {
            mti_flags: LDD_F_SV_TYPE_OST,
            mti_stripe_index: index,
            mti_instance: instance,
            mti_fsname: Text::truncated("lus"),
            mti_nid_count: 1,
            ..MgsTargetInfo::default()
        };
        info.mti_nids[0] = format!("10.0.0.{}@tcp", index + 1).parse().unwrap();
        info
    }

    fn body(offset: u64, units: u32) -> MgsConfigBody {
        MgsConfigBody {
            mcb_offset: offset,
            mcb_bits: 7,
            mcb_units: units,
            ..MgsConfigBody::default()
        }
    }

    #[test]
    fn clients_read_the_changes_after_the_last_version_that_they_know() {
        let mut tables = NidTables::default();
        let (result, pages) = tables.read("lus", &body(1, 4)).unwrap();
        assert_eq!((result.mcr_offset, result.mcr_size, pages.len()), (0, 0, 0));
        for index in 0..5 {
            assert!(tables.set(&info(index, 1), 100));
        }
        assert!(!tables.set(&info(2, 1), 100), "nothing changed");
        let (mut offset, mut found) = (0, Vec::new());
        loop {
            // A unit of 128 bytes has four entries of 32.
            let (result, pages) = tables.read("lus", &body(offset, 1)).unwrap();
            found.extend(decode(&pages).unwrap());
            offset = result.mcr_offset + 1;
            if result.mcr_offset == result.mcr_size {
                break;
            }
        }
        let indices: Vec<_> = found.iter().map(|location| location.index).collect();
        assert_eq!(indices, [0, 1, 2, 3, 4]);
        assert!(tables.set(&info(2, 2), 100));
        let (_, pages) = tables.read("lus", &body(offset, 4)).unwrap();
        let changed = decode(&pages).unwrap();
        assert_eq!((changed.len(), changed[0].index, changed[0].instance), (1, 2, 2));
        assert_eq!(tables.read("lus", &body(0, 0)), Err(Errno::EINVAL));
    }
}
