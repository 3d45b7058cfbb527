// The type of a dashboard with the panels that ours has, from Grafana's own types: no other field is allowed.
import type { Dashboard, FieldConfig, Panel, RowPanel, VariableModel } from "./node_modules/@grafana/schema/dist/types/raw/dashboard/x/dashboard_types.gen";
import type { Options as StatOptions } from "./node_modules/@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type { FieldConfig as TimeField, Options as TimeOptions } from "./node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

/** A type as JSON has it: enumerations are their values, and everything may be left out. */
type Json<T> = unknown extends T ? T
  : T extends boolean | null | undefined ? T
  : T extends string ? `${T}`
  : T extends number ? (`${T}` extends `${infer N extends number}` ? N : number)
  : T extends (infer One)[] ? Json<One>[]
  : T extends object ? { [Key in keyof T]?: Json<T[Key]> }
  : T;

type Target = { refId: string; expr: string; legendFormat?: string; instant?: boolean; range?: boolean;
  format?: "time_series" | "table" | "heatmap"; interval?: string; exemplar?: boolean; hide?: boolean;
  datasource: { type: "prometheus"; uid: string } };
type Of<Type extends string, Options, Custom> = Json<Omit<Panel, "type" | "options" | "fieldConfig" | "targets">> & {
  type: Type;
  title: string;
  options: Json<Options>;
  targets: Target[];
  fieldConfig: {
    defaults: Json<Omit<FieldConfig, "custom">> & { custom?: Json<Custom> };
    overrides: Json<NonNullable<Panel["fieldConfig"]>["overrides"]>;
  };
};

export type Checked = Json<Omit<Dashboard, "panels" | "templating">> & {
  templating: { list: (Json<VariableModel> & { definition?: string })[] }; // Grafana saves it, its schema lacks it
  panels: (Of<"timeseries", TimeOptions, TimeField> | Of<"stat", StatOptions, Record<string, never>> |
    (Json<Omit<RowPanel, "type">> & { type: "row" }))[];
};
