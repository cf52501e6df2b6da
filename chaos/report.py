"""stub"""
def written(folder, values, history):
    import json
    (folder/"report.json").write_text(json.dumps(values, indent=2))
