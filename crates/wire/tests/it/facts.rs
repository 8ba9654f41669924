//! Compares every structure and constant with the facts of Lustre's headers
//! (`data/wire-facts.json.gz`): sizes of structures, offsets and sizes of all fields, values, error
//! numbers. Prints the share of the facts that is implemented.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::io::Read;

fn facts() -> Value {
    let mut text = String::new();
    let file = std::fs::File::open(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/wire-facts.json.gz"
    ))
    .unwrap();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn structures_have_the_sizes_and_offsets_of_the_facts() {
    let facts = facts();
    let known = facts["structs"].as_object().unwrap();
    let mut seen = HashSet::new();
    for layout in wire::structs() {
        let fact = known
            .get(layout.name)
            .unwrap_or_else(|| panic!("{} is not in the facts", layout.name));
        assert!(seen.insert(layout.name), "{} is declared twice", layout.name);
        let size = fact["size"].as_u64().unwrap() as usize;
        // The declared structure includes the two handles of the smallest request. In the facts,
        // the handles are a flexible array.
        let expected = if layout.name == "ldlm_request" {
            size + 16
        } else {
            size
        };
        assert_eq!(layout.size, expected, "size of {}", layout.name);

        let mut in_facts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for f in fact["fields"].as_array().unwrap() {
            let name = f[0].as_str().unwrap().trim_end_matches("[0]").to_owned();
            in_facts.insert(
                name,
                (f[1].as_u64().unwrap() as usize, f[2].as_u64().unwrap() as usize),
            );
        }
        let mut covered = vec![false; layout.size];
        for field in layout.fields {
            let name = field.name.trim_start_matches("r#");
            covered[field.offset..field.offset + field.size].fill(true);
            if name.starts_with("pad_") {
                let clash = in_facts
                    .values()
                    .find(|(o, s)| *o < field.offset + field.size && field.offset < o + s);
                assert_eq!(clash, None, "{}.{name} hides a field", layout.name);
                continue;
            }
            let (offset, size) = match in_facts.get(name).or_else(|| in_facts.get(&format!("oi.{name}"))) {
                Some(found) => *found,
                None => panic!("{}.{name} is not in the facts", layout.name),
            };
            assert_eq!(field.offset, offset, "offset of {}.{name}", layout.name);
            let flexible = size == 0 || name == "fe_reserved";
            assert!(
                flexible || field.size == size,
                "size of {}.{name}: {} for {size}",
                layout.name,
                field.size
            );
        }
        assert!(covered.iter().all(|c| *c), "{} has holes", layout.name);
    }
    let share = 100.0 * seen.len() as f64 / known.len() as f64;
    println!(
        "implemented {} of {} structures ({share:.0} %)",
        seen.len(),
        known.len()
    );
}

#[test]
fn constants_have_the_values_of_the_facts() {
    let facts = facts();
    let known = facts["constants"].as_object().unwrap();
    let mut seen = HashSet::new();
    for (name, value) in wire::consts::all() {
        let fact = known
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the facts"))
            .as_u64()
            .unwrap();
        // The facts extend negative values to 64 bits.
        assert!(
            value == fact || (value == fact & 0xffff_ffff && fact >> 32 == 0xffff_ffff),
            "{name}: {value:#x} for {fact:#x}"
        );
        assert!(seen.insert(name), "{name} is declared twice");
    }
    let share = 100.0 * seen.len() as f64 / known.len() as f64;
    println!(
        "implemented {} of {} constants ({share:.0} %)",
        seen.len(),
        known.len()
    );
}

#[test]
fn error_numbers_have_the_values_of_the_facts() {
    let facts = facts();
    let known = facts["errno"].as_object().unwrap();
    for (name, value) in known {
        let ours = wire::errno::ERRNOS.iter().find(|(n, _, _)| n == name);
        assert_eq!(ours.map(|(_, v, _)| i64::from(*v)), value.as_i64(), "{name}");
    }
    assert_eq!(wire::errno::ERRNOS.len(), known.len());
}
