//! Each model does what its product's data sheet says.

use weft_model::catalog::MODELS;
use weft_model::measure::validate;

#[test]
fn every_model_meets_its_data_sheet() {
    let mut bad = Vec::new();
    for model in &MODELS {
        println!("\n{} – {}\n  {}", model.name, model.title, model.source);
        for line in validate(model) {
            let measured = line.measured;
            let sheet = line.sheet.map_or_else(String::new, |sheet| {
                let kind = if sheet.stated { "sheet" } else { "derived" };
                let off = 100.0 * line.deviation().unwrap_or(0.0);
                let most = 100.0 * sheet.tolerance;
                format!("{kind} {:>10.1}  {off:+5.1} % (at most {most:.0} %)", sheet.value)
            });
            println!("  {:<36} {measured:>12.1}  {sheet}", line.measure.to_string());
            if !line.holds() {
                bad.push(format!("{}: {}", model.name, line.measure));
            }
        }
    }
    assert!(bad.is_empty(), "not within tolerance: {bad:?}");
}
