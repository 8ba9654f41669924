//! The MGS's table of the targets' current NIDs (Lustre's imperative recovery): a client learns at
//! once that a target has started again, possibly on another node, and reconnects there.
//!
//! The table of a file system has one entry per target that has reported itself ready since the
//! MGS started. `MGS_CONFIG_READ` returns entries by bulk, in units of a page (docs/protocol.md,
//! "Table of NIDs").

use wire::{LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST, LnetNid, MgsNidtblEntry, Nid, WireStruct};

/// `lnd_type` of TCP in a `lnet_nid`.
const SOCKLND: u8 = 2;
/// Largest number of NIDs in an entry.
const NIDS_MAX: usize = wire::MTI_NIDS_MAX as usize;

/// Where a target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetLocation {
    /// The version of the table that contains this change.
    pub version: u64,
    /// An MDT, not an OST.
    pub is_mdt: bool,
    /// Index of the target.
    pub index: u32,
    /// The target's start, as in `ocd_instance`.
    pub instance: u32,
    /// The NIDs of the target's node.
    pub nids: Vec<Nid>,
}

/// The locations of a file system's targets, in the order of versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NidTable(pub Vec<TargetLocation>);

impl NidTable {
    /// The locations of MDTs or of OSTs.
    pub fn of_kind(&self, mdt: bool) -> impl Iterator<Item = &TargetLocation> {
        self.0.iter().filter(move |location| location.is_mdt == mdt)
    }
}

/// The size of a NID in an entry, bytes: that of `lnet_nid`, or that of the old form of 8 bytes.
fn nid_size(large: bool) -> usize {
    match large {
        true => LnetNid::SIZE,
        false => size_of::<u64>(),
    }
}

/// Encodes locations into at most `units` units of `unit` bytes; `large`: NIDs as `lnet_nid`.
/// Returns the bytes, and the number of locations in them. The last entry in a unit includes the
/// rest of the unit, if another unit follows.
pub fn encode(locations: &[TargetLocation], unit: usize, units: usize, large: bool) -> (Vec<u8>, usize) {
    let mut out: Vec<u8> = Vec::new();
    let mut last_length_at = None;
    for (done, location) in locations.iter().enumerate() {
        let nids = &location.nids[..location.nids.len().min(NIDS_MAX)];
        let len = MgsNidtblEntry::SIZE + nids.len() * nid_size(large);
        let left = out.len().next_multiple_of(unit) - out.len();
        if left < len {
            if len > unit || out.len().div_ceil(unit) == units {
                return (out, done);
            }
            if let Some(at) = last_length_at.filter(|_| left > 0) {
                add_to_length(&mut out, at, left as u32);
                out.resize(out.len() + left, 0);
            }
        }
        last_length_at = Some(out.len() + MNE_LENGTH);
        let kind = match location.is_mdt {
            true => LDD_F_SV_TYPE_MDT,
            false => LDD_F_SV_TYPE_OST,
        };
        let entry = MgsNidtblEntry {
            mne_version: location.version,
            mne_instance: location.instance,
            mne_index: location.index,
            mne_length: len as u32,
            mne_type: kind as u8,
            mne_nid_type: u8::from(large),
            mne_nid_size: nid_size(large) as u8,
            mne_nid_count: nids.len() as u8,
        };
        out.extend(entry.to_bytes());
        for nid in nids {
            match large {
                true => out.extend(large_nid(*nid).to_bytes()),
                false => out.extend(nid.0.to_le_bytes()),
            }
        }
    }
    (out, locations.len())
}

/// Offset of `mne_length` in an entry.
const MNE_LENGTH: usize = 16;

fn add_to_length(out: &mut [u8], at: usize, more: u32) {
    if let Some(field) = out[at..].first_chunk_mut::<4>() {
        *field = (u32::from_le_bytes(*field) + more).to_le_bytes();
    }
}

/// Decodes the entries of a reply. NIDs of other networks than TCP over IPv4 are left out.
///
/// # Errors
///
/// How the entries are malformed.
pub fn decode(mut data: &[u8]) -> Result<Vec<TargetLocation>, String> {
    let mut out = Vec::new();
    while !data.is_empty() {
        let entry = MgsNidtblEntry::from_bytes(data).map_err(|e| e.to_string())?;
        let (len, size) = (entry.mne_length as usize, usize::from(entry.mne_nid_size));
        let count = usize::from(entry.mne_nid_count);
        let large = entry.mne_nid_type != 0;
        let nids = data
            .get(..len)
            .and_then(|whole| whole.get(MgsNidtblEntry::SIZE..MgsNidtblEntry::SIZE + count * size));
        let expected = nid_size(large);
        let Some(nids) = nids.filter(|_| size == expected) else {
            let rest = data.len();
            return Err(format!(
                "an entry with {count} NIDs of {size} bytes has length {len} of {rest} bytes"
            ));
        };
        let nid = |bytes: &[u8]| match large {
            true => small_nid(&LnetNid::from_bytes(bytes).ok()?),
            false => Some(Nid(u64::from_le_bytes(bytes.try_into().ok()?))),
        };
        out.push(TargetLocation {
            version: entry.mne_version,
            is_mdt: u32::from(entry.mne_type) == LDD_F_SV_TYPE_MDT,
            index: entry.mne_index,
            instance: entry.mne_instance,
            nids: nids.chunks(size).filter_map(nid).collect(),
        });
        data = &data[len..];
    }
    Ok(out)
}

fn large_nid(nid: Nid) -> LnetNid {
    let mut nid_addr = [0; 16];
    nid_addr[..4].copy_from_slice(&nid.addr().octets());
    LnetNid {
        nid_size: 0,
        nid_type: (nid.0 >> 48) as u8,
        nid_num: ((nid.0 >> 32) as u16).to_be_bytes(),
        nid_addr,
    }
}

fn small_nid(nid: &LnetNid) -> Option<Nid> {
    let addr = nid.nid_addr.first_chunk::<4>()?;
    let is_ipv4 = nid.nid_size == 0 && nid.nid_type == SOCKLND;
    is_ipv4.then(|| Nid::tcp((*addr).into(), u16::from_be_bytes(nid.nid_num)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn location(index: u32, nids: usize) -> TargetLocation {
        TargetLocation {
            version: u64::from(index) + 7,
            is_mdt: index == 0,
            index,
            instance: 3 + index,
            nids: (0..nids)
                .map(|n| format!("10.0.{index}.{n}@tcp{n}").parse().unwrap())
                .collect(),
        }
    }

    #[test]
    fn locations_round_trip_in_both_forms_of_nids() {
        let locations: Vec<_> = (0..9).map(|index| location(index, 1 + index as usize)).collect();
        for large in [false, true] {
            let (bytes, count) = encode(&locations, 4096, 8, large);
            assert_eq!(count, 9);
            assert_eq!(decode(&bytes).unwrap(), locations);
            for cut in 1..bytes.len() {
                if let Ok(found) = decode(&bytes[..cut]) {
                    assert_eq!(found, locations[..found.len()]);
                }
            }
        }
    }

    #[test]
    fn units_are_filled_and_what_does_not_fit_is_left_for_the_next_read() {
        let locations: Vec<_> = (0..20).map(|index| location(index, 20)).collect();
        // An entry has 24 + 160 bytes, so a unit of 512 has two.
        let (bytes, count) = encode(&locations, 512, 3, false);
        assert_eq!((bytes.len(), count), (2 * 512 + 2 * 184, 6));
        assert_eq!(decode(&bytes).unwrap(), locations[..6]);
        let (bytes, count) = encode(&locations, 128, 3, false);
        assert_eq!((bytes.len(), count), (0, 0));
        assert!(decode(&[]).unwrap().is_empty());
    }
}
